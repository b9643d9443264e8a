"""Barriers by which threads wait for each other: named barriers, mbarriers, clusters."""
