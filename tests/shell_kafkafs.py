"""Lets shells start `kafkafs` by the fork server, too.

`directory()` has a script `kafkafs`, for PATH. The script sends its arguments, environment, working
directory and standard streams to a thread of the test process. The thread starts the program, waits
for its end and replies with the exit status. If the script ends before, for example by a signal,
the thread terminates the program.
"""

from __future__ import annotations

import functools
import marshal
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.fork_server import KAFKAFS, with_usual_start

#: Without the modules that Python usually loads, this starts in a tenth of the time of kafkafs.
_SCRIPT = """\
#!{python} -IS
import marshal, os, sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket
umask = os.umask(0)
descriptors = [0, 1, 2, os.open(".", os.O_PATH)]
rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
call = socket(AF_UNIX, SOCK_SEQPACKET)
call.connect({address!r})
asked = marshal.dumps((sys.argv[1:], dict(os.environ), umask))
call.sendmsg([asked], [(SOL_SOCKET, SCM_RIGHTS, rights)])
for fd in descriptors:
    os.close(fd)
status = int(call.recv(8))
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def directory() -> Path:
    """Return a directory with the script, which works as long as this process lives."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0kafkafs-tests-{os.getpid()}")
    listener.listen(64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    script = Path(_made().name) / "kafkafs"
    script.write_text(_SCRIPT.format(python=sys.executable, address=listener.getsockname()))
    script.chmod(0o755)
    return script.parent


@functools.cache
def _made() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kafkafs-shells-")


def _accept(listener: socket.socket) -> None:
    while True:
        call, _ = listener.accept()
        threading.Thread(target=_run, args=(call,), daemon=True).start()


def _run(call: socket.socket) -> None:
    """Run the program that a script asks for."""
    with call:
        data, descriptors, _, _ = socket.recv_fds(call, 1 << 20, 4)
        words, environment, umask = marshal.loads(data)
        stdin, stdout, stderr, where = descriptors
        process = subprocess.Popen(
            [*KAFKAFS, *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=f"/proc/self/fd/{where}",
            env=with_usual_start(environment),
            umask=umask,
        )
        for fd in descriptors:
            os.close(fd)
        end = os.pidfd_open(process.pid)
        ended, _, _ = select.select([call.fileno(), end], [], [])
        os.close(end)
        if call.fileno() in ended:
            process.terminate()
            process.wait()
        else:
            call.send(b"%d" % process.wait())
