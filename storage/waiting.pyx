"""Whether the caller may wait: for the disk, for another thread, or for a long computation.

A daemon answers all requests on one thread.  While that thread waits, no request is answered, and a
process that waits for an answer cannot be killed.  So the daemon calls what answers a request with
``at_once``: inside of that call, whatever would wait raises BlockingIOError instead.  What shows
anywhere has not changed then; what was made for the call may stay.  The daemon repeats the call in
a worker thread, where it waits.

Everywhere else a thread may wait: a program that answers no requests does nothing about it.

Compiled, because every request asks several times.
"""

cdef extern from "_waiting.h":
    bint must_not_wait


def may_wait():
    """Whether this thread may wait now: not inside of ``at_once``."""
    return not must_not_wait


def before_waiting():
    """Call this before what waits: BlockingIOError inside of ``at_once``."""
    if must_not_wait:
        raise BlockingIOError


cdef object _call(bint without_waiting, function, arguments):
    global must_not_wait
    cdef bint before = must_not_wait
    must_not_wait = without_waiting
    try:
        return function(*arguments)
    finally:
        must_not_wait = before


def at_once(function, *arguments):
    """Call a function that must not wait.  BlockingIOError: call it where it may."""
    return _call(True, function, arguments)


def anyway(function, *arguments):
    """Call a function that waits, also inside of ``at_once``: it can run on this thread only."""
    return _call(False, function, arguments)
