"""A python that stops on its way to ``script.py``, imports torch, and goes on in forks of itself.

The scripts of the end-to-end tests are small: importing torch is most of what they cost. This
module is loaded while the interpreter starts. It stays here and forks for each request; the fork
goes on with the start, as python itself does it, into the ``script.py`` of another folder. Until
a fork asks for torch, it is hidden, so that whoever waits for ``import torch`` sees one.

``holdfast run`` and ``torchrun`` are such forks too. What they start must be their own children and
go on from up here, so those wait from the beginning until they are told what to become.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from importlib.machinery import ModuleSpec

_LAUNCHER = "torch.distributed.run"
_BARE = set(sys.modules)
_PATH = [path for path in sys.path if path not in os.environ["PYTHONPATH"].split(os.pathsep)]


class _Filename:
    """Which file this python is about to run; it has made the path absolute already."""

    def __init__(self):
        get = ctypes.pythonapi._Py_GetConfig
        get.restype = ctypes.c_void_p
        begin, wanted = get(), self._encoded(os.path.abspath("script.py"))
        with open("/proc/self/maps") as file:
            ranges = [line.split()[0].split("-") for line in file if line.split()[1][0] == "r"]
        memory = [range(int(low, 16), int(high, 16) - len(wanted)) for low, high in ranges]
        words = (ctypes.c_void_p.from_address(begin + i) for i in range(0, 1024, 8))
        pointers = (word for word in words if any((word.value or 0) in part for part in memory))
        (self._word,) = (w for w in pointers if ctypes.string_at(w.value, len(wanted)) == wanted)

    def replace(self, path):
        text = self._encoded(path)
        allocate = ctypes.pythonapi.PyMem_RawMalloc  # python frees it
        allocate.restype = ctypes.c_void_p
        self._word.value = allocate(ctypes.c_size_t(len(text)))
        ctypes.memmove(self._word.value, text, len(text))

    @staticmethod
    def _encoded(text):
        return bytes(ctypes.create_unicode_buffer(text))


class _Hidden:
    """What was imported ahead of time, found as if it were imported now."""

    def __init__(self) -> None:
        import numpy  # noqa: F401
        import torch

        self._torch = set(sys.modules) - _BARE
        import torch._dynamo

        # In their order, in which python takes them apart at its end.
        self._modules = {n: module for n, module in sys.modules.items() if n not in _BARE}
        for name in self._modules:
            del sys.modules[name]
        # With the first optimizer, as a rule.
        del torch._dynamo
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in self._modules else None

    def create_module(self, spec):
        module = self._modules[spec.name]
        self._own = {name: getattr(module, name, None) for name in ("__spec__", "__loader__")}
        return module

    def exec_module(self, module):
        vars(module).update(self._own)
        name = module.__name__
        for other in list(self._modules):
            with_it = name == "torch" and other in self._torch
            if with_it or name in ("torch._dynamo", other) or other.startswith(f"{name}."):
                sys.modules[other] = self._modules.pop(other)


def _serve(line):
    """Returns in a fork, with what is asked of it."""
    # Nobody waits for those that wait for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, streams, _, _ = socket.recv_fds(line, 1 << 20, 4)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                return json.loads(asked), streams
            for number in streams[:3]:
                os.close(number)
            line.send(str(pid).encode())
            os.write(streams[3], str(os.waitpid(pid, 0)[1]).encode())
            os._exit(0)
        for number in streams:
            os.close(number)


def _settle(asked, streams):
    """Take over the streams and the folder; nothing else of the server stays open."""
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 64)
    os.chdir(asked["cwd"])


def _environment(words, environment):
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[:] = [sys.executable, *words]
    sys.argv[:] = words
    given = environment.get("PYTHONPATH", "")
    sys.path[:] = [os.path.abspath(path) for path in given.split(os.pathsep) if path] + _PATH


def _customize():
    """What python would do in our place."""
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


def _wait_for_words():
    """A fork of now, for later: its pid and whom to tell its words. Returns them in that fork."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    os.close(write)
    with open(read, "rb") as reported:
        words = reported.readline()  # not to the end: other forks hold that open
    if not words:
        os._exit(0)
    return json.loads(words)


def _go_on(waiting, words, environment, **more):
    """A fork that waits becomes the process of a command; its pid."""
    pid, write = waiting
    with open(write, "wb") as tell:
        tell.write(json.dumps({"words": words, "environment": environment, **more}).encode())
        tell.write(b"\n")
    return pid


def _hold():
    """``holdfast``. Returns in the process of its script, with the words for it."""
    waiting = _wait_for_words()
    if isinstance(waiting, dict):
        return waiting
    spawn, waiting = os.posix_spawnp, [waiting]

    def start(path, words, environment, *, setsigmask=()):
        known = words[1:2] == ["script.py"] or words[1:3] == ["-m", _LAUNCHER]
        if not waiting or words[0] != sys.executable or not known:
            return spawn(path, words, environment, setsigmask=setsigmask)
        mask = [int(number) for number in setsigmask]
        return _go_on(waiting.pop(), words[1:], environment, mask=mask)

    os.posix_spawnp = start
    from holdfast.cli import main

    _leave(main)


def _launch():
    """``torchrun`` for two. Returns in the processes of its ranks, with the words for them."""
    ranks = []
    while len(ranks) < 2:
        waiting = _wait_for_words()
        if isinstance(waiting, dict):
            return waiting
        ranks.append(waiting)
    _customize()
    from subprocess import Popen

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    class Rank(Popen):
        def _execute_child(self, words, *given):
            self.pid = _go_on(ranks.pop(0), words[2:], given[5], session=True, unbuffered=True)
            self._child_created = True

    def start(args, env, stdout, stderr, start_new_session):
        assert stdout is stderr is None and start_new_session and args[1] == "-u"
        kind = Rank if ranks else Popen
        return kind(args=args, env=env, start_new_session=True)

    subprocess_handler.Popen = start
    _leave(run.main)


def _leave(main):
    import atexit

    try:
        code = main()
    except SystemExit as left:
        code = left.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def _start():
    line = socket.socket(fileno=int(os.environ["WARM_LINE"]))
    filename = _Filename()
    _Hidden()
    import gc

    gc.freeze()
    asked, streams = _serve(line)
    line.detach()
    _settle(asked, streams)
    while True:
        words = asked["words"]
        if asked.get("session"):
            os.setsid()
        if asked.get("unbuffered"):
            sys.stdout.reconfigure(line_buffering=True)
        _environment(words, asked["environment"])
        signal.pthread_sigmask(signal.SIG_SETMASK, asked.get("mask", ()))
        if words[0] == "script.py":
            break
        sys.argv[:] = words[1:]
        asked = _hold() if words[1] == "holdfast" else _launch()
    filename.replace(os.path.abspath("script.py"))
    _customize()


_start()
