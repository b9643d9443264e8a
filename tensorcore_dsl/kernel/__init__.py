"""The class behind `@tc.kernel`: kernels are compiled on demand, launched and emulated."""

from tensorcore_dsl.kernel.constants import constants_key as constants_key
from tensorcore_dsl.kernel.decorator import Kernel as Kernel
from tensorcore_dsl.kernel.decorator import kernel as kernel
from tensorcore_dsl.kernel.emulation import Emulator as Emulator
from tensorcore_dsl.kernel.launch import Launch as Launch
from tensorcore_dsl.kernel.parameters import Const as Const
from tensorcore_dsl.kernel.parameters import Parameter as Parameter
from tensorcore_dsl.kernel.specialisation import Specialisation as Specialisation
