"""Events, which order streams: on the GPU, and for the checks of the emulator."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.errors import public
from tensorcore_dsl.interpreter.sanitizer import stream_order
from tensorcore_dsl.interpreter.sanitizer.stream_order import Queued
from tensorcore_dsl.runtime.array_interop import stream_handle
from tensorcore_dsl.runtime.driver import cuda_driver
from tensorcore_dsl.runtime.targets import current_target


class Event:
    """A point in the work of a stream; other streams and the host can wait for it.

    A stream is an object that a launch takes; None is the default stream. In emulation, launches run one
    after the other, and any number is the handle of a stream. Events then tell the checks which
    launches cannot run at the same time.

    See Also
    --------
    explore : Runs launches at the same time.

    Examples
    --------
    >>> @tc.kernel
    ... def double(x: tc.Array):
    ...     x[tc.threadIdx.x] *= 2
    >>> x, event = np.ones(32, np.float32), tc.Event()
    >>> double[1, 32, 7](x)
    >>> event.record(7)
    >>> event.wait(8)
    >>> double[1, 32, 8](x)
    >>> float(x[0])
    4.0
    """

    def __init__(self) -> None:
        self._ended: frozenset[int] = frozenset()  # launches of the emulator
        self._event: Any = None

    @public
    def record(self, stream: Any = None) -> None:
        """The event becomes the end of all work in a stream so far.

        Parameters
        ----------
        stream : stream or int, optional
            As a launch takes it.

        Raises
        ------
        ArgumentError
            Something that is no stream.
        """
        queued = queue_of(stream)
        if current_target() == "cpu":
            self._ended = stream_order.ended(queued)
            return
        driver = cuda_driver()
        self._event = self._event or driver.event()
        driver.record(self._event, queued.stream)

    @public
    def wait(self, stream: Any = None) -> None:
        """Later work of a stream waits for the event.

        Parameters
        ----------
        stream : stream or int, optional
            As a launch takes it.

        Raises
        ------
        ArgumentError
            Something that is no stream.
        """
        queued = queue_of(stream)
        if self._event is not None:
            cuda_driver().wait(self._event, queued.stream)
        stream_order.wait_for(queued, self._ended)

    def synchronize(self) -> None:
        """The host waits for the event."""
        if self._event is not None:
            self._event.synchronize()
        stream_order.host_waits_for(self._ended)


def queue_of(stream: Any, pdl: bool = False) -> Queued:
    """Queue of a launch on a stream."""
    handle = stream_order.DEFAULT_STREAM if stream is None else stream_handle(stream)
    if handle == stream_order.LEGACY_STREAM:
        handle = stream_order.DEFAULT_STREAM
    blocking = type(stream).__module__.partition(".")[0] != "torch"  # torch's streams do not block
    return Queued(handle, blocking or handle == stream_order.DEFAULT_STREAM, pdl)
