"""Benchmarks of questions that recorded results have answered."""
