"""Estimates how long an emulated run takes on a GPU, from what each warp executed."""
