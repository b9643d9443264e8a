"""Executes runs of instructions of single threads in compiled code, warp by warp."""
