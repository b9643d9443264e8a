"""Fast launch path: launches of known plans in machine code. docs/launch.md explains it."""

from tensorcore_dsl.runtime.fast_launch.plans import FastPath as FastPath
from tensorcore_dsl.runtime.fast_launch.plans import key_function as key_function
