"""Questions that recorded results answer; what measured them."""
