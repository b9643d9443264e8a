"""Names of instructions that error messages advise, without the modifiers of a use."""

from tensorcore_dsl.isa import names

BULK_WAIT_READ = names.bulk_wait(True)
CP_ASYNC, CP_ASYNC_COMMIT = names.CP_ASYNC, names.CP_ASYNC_COMMIT
CLUSTER_BARRIER = names.CLUSTER_ARRIVE.partition(".arrive")[0]
FENCE_MBARRIER_INIT = names.FENCE_MBARRIER_INIT.partition(".release")[0]
FENCE_PROXY_ASYNC_GLOBAL = names.FENCE_PROXY_ASYNC_GLOBAL
FENCE_PROXY_ASYNC = names.FENCE_PROXY_ASYNC.partition(".shared")[0]
GRIDDEP_WAIT = names.GRIDDEP_WAIT
MBARRIER_INIT = names.MBARRIER_INIT.partition(".shared")[0]
MBARRIER_INVAL = "mbarrier.inval"
TENSORMAP_RELEASE, TENSORMAP_ACQUIRE = (
    f"fence.proxy.tensormap::generic.{way}" for way in ("release", "acquire")
)
