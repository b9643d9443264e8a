"""The state of a chunk of CTAs and the flat program: plain data that all other folders share."""
