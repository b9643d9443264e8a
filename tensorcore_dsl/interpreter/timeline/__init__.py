"""Estimate of the GPU time of an emulated run, from the steps of each warp."""
