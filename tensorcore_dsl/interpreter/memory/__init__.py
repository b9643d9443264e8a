"""Memories of each state space, and the asynchronous copies between them."""
