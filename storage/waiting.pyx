"""Whether the caller may wait: for the disk, for another thread, or for a long computation.

A daemon answers all requests on one thread. While that thread waits, it answers no request, and
nobody can kill a process that waits for an answer. So the daemon answers a request inside
`at_once`: there, a function that would wait raises BlockingIOError instead. It has then changed
nothing visible; it may leave prepared state. The daemon repeats the call in a worker thread, where
it waits.

Everywhere else a thread may wait: a program that answers no requests need not use this module.

Compiled, because the code calls `may_wait` several times in every request.
"""

cdef extern from "_waiting.h":
    bint must_not_wait


def may_wait():
    """Return whether this thread may wait now: False inside `at_once`."""
    return not must_not_wait


def before_waiting():
    """Raise BlockingIOError inside `at_once`. Call it before anything that waits."""
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
    """Call a function that must not wait; on BlockingIOError, call it again where it may wait."""
    return _call(True, function, arguments)


def anyway(function, *arguments):
    """Call a function that may wait even inside `at_once`, as it can run on this thread only."""
    return _call(False, function, arguments)
