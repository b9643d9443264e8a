"""Names of instructions that error messages advise."""

BULK_WAIT_READ = "cp.async.bulk.wait_group.read"
CLUSTER_BARRIER = "barrier.cluster"
FENCE_PROXY_ASYNC = "fence.proxy.async"
MBARRIER_INIT = "mbarrier.init"
MBARRIER_INVAL = "mbarrier.inval"
