"""Names of instructions in messages: the function of the language, and the instruction in parentheses."""

import re

from tensorcore_dsl.isa import names

_FUNCTIONS = {
    "bar.sync": "barrier()",
    "bar.arrive": "barrier_arrive()",
    "bar.warp.sync": "syncwarp()",
    "barrier.cluster": "cluster_sync()",
    "cp.async.bulk.commit_group": "tma_store_commit()",
    "cp.async.bulk.wait_group.read": "tma_store_wait(read=True)",
    "cp.async.bulk.wait_group": "tma_store_wait()",
    "cp.async.commit_group": "cp_async_commit()",
    "cp.async.wait_group": "cp_async_wait()",
    "fence.mbarrier_init": "fence_mbarrier_init()",
    "fence.proxy.async.global": 'fence_proxy_async("global")',
    "fence.proxy.async": "fence_proxy_async()",
    "griddepcontrol.wait": "griddep_wait()",
    "wgmma.commit_group": "wgmma_commit()",
    "wgmma.fence": "wgmma_fence()",
    "wgmma.wait_group": "wgmma_wait()",
}


def called(mnemonic: str) -> str:
    """`tc.function() (mnemonic)`, or only the mnemonic where no function of the language emits it alone."""
    short = next((name for name in _FUNCTIONS if f"{mnemonic}.".startswith(f"{name}.")), "")
    return f"tc.{_FUNCTIONS[short]} ({mnemonic})" if short else mnemonic


# What orders the threads of a block, and of a warp, in kernels of other compilers.
LANGUAGES = {
    "CUDA": ("__syncthreads()", "__syncwarp()"),
    "PTX": ("bar.sync", "bar.warp.sync"),
    "Numba": ("cuda.syncthreads()", "cuda.syncwarp()"),
    "Triton": ("tl.debug_barrier()", "tl.debug_barrier()"),
}


def translated(text: str, language: str) -> str:
    """A message about a kernel of another compiler: its calls, else instructions."""
    for call, theirs in zip(("tc.barrier()", "tc.syncwarp()"), LANGUAGES.get(language, ())):
        text = text.replace(call, theirs)
    return re.sub(r"tc\.\w+\([^)]*\) \(([\w.:]+)\)", r"\1", text) if language else text


BULK_COMMIT = called(names.BULK_COMMIT)
BULK_WAIT, BULK_WAIT_READ = (called(names.bulk_wait(reading)) for reading in (False, True))
CP_ASYNC, CP_ASYNC_COMMIT = names.CP_ASYNC, called(names.CP_ASYNC_COMMIT)
CLUSTER_BARRIER = called("barrier.cluster")
FENCE_MBARRIER_INIT = called("fence.mbarrier_init")
FENCE_PROXY_ASYNC_GLOBAL, FENCE_PROXY_ASYNC = (
    called(names.FENCE_PROXY_ASYNC_GLOBAL),
    called("fence.proxy.async"),
)
GRIDDEP_WAIT = called(names.GRIDDEP_WAIT)
MBARRIER_INIT = f"init() ({names.MBARRIER_INIT.partition('.shared')[0]})"
MBARRIER_INVAL = "mbarrier.inval"
TENSORMAP_RELEASE, TENSORMAP_ACQUIRE = (
    f"fence.proxy.tensormap::generic.{way}" for way in ("release", "acquire")
)
