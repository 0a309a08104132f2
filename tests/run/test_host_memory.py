"""Limits of host memory, as the system tells them in its files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from holdfast.run import host_memory
from holdfast.run.host_memory import MemoryLimit, nearest

GIB = 2**30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write files of /proc and /sys/fs/cgroup by name."""
    monkeypatch.setattr(host_memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    host_memory._groups.cache_clear()

    def write(files: dict[str, str]) -> None:
        memory = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
        for name, text in ({"proc/meminfo": memory} | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "cgroup.procs").touch()
            path.write_text(text)

    yield write
    host_memory._groups.cache_clear()


def test_version_2_and_pages_of_files_do_not_count(system):
    system(
        {
            "proc/self/cgroup": "0::/user/job\n",
            "cgroup/user/job/memory.max": "max\n",
            "cgroup/user/memory.max": f"{4 * GIB}\n",
            "cgroup/user/memory.current": f"{4 * GIB - 4096}\n",
            "cgroup/user/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\n",
            "cgroup/user/job/memory.events": "low 0\noom 3\noom_kill 2\n",
            "cgroup/user/memory.events": "oom_kill 9\n",
        }
    )
    group, machine = host_memory.shared_limits()
    assert group == MemoryLimit(name="cgroup", bytes=4 * GIB, used=2 * GIB - 4096)
    assert machine == MemoryLimit(name="machine", bytes=32 * GIB, used=24 * GIB)
    assert nearest([machine, group]) is group
    assert host_memory.oom_kills() == 2, "of the group itself"


def test_version_1_of_a_slurm_job_and_no_limit(system):
    path = "slurm/uid_1/job_7/step_0"
    system(
        {
            "proc/self/cgroup": f"9:cpu,cpuacct:/\n4:memory:/{path}\n0::/\n",
            f"cgroup/memory/{path}/memory.limit_in_bytes": "9223372036854771712\n",
            f"cgroup/memory/{path}/memory.usage_in_bytes": "1\n",
            "cgroup/memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{2 * GIB}\n",
            "cgroup/memory/slurm/uid_1/job_7/memory.usage_in_bytes": f"{2 * GIB}\n",
            "cgroup/memory/slurm/uid_1/job_7/memory.stat": f"cache 1\ntotal_active_file {GIB}\n",
            f"cgroup/memory/{path}/memory.oom_control": "under_oom 0\noom_kill 1\n",
        }
    )
    job, _ = host_memory.shared_limits()
    assert job == MemoryLimit(name="slurm", bytes=2 * GIB, used=GIB)
    assert job.share == 0.5 and job.free == GIB
    assert host_memory.oom_kills() == 1


def test_a_container_that_sees_the_path_of_its_host(system):
    system(
        {
            "proc/self/cgroup": "4:memory:/docker/0a1b\n",
            "cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "cgroup/memory/memory.usage_in_bytes": "4096\n",
        }
    )
    assert host_memory.shared_limits()[0] == MemoryLimit(name="cgroup", bytes=GIB, used=4096)


def test_a_system_that_tells_nothing(system):
    system({"proc/meminfo": ""})
    (machine,) = host_memory.shared_limits()
    assert machine.bytes > GIB // 4 and machine.name == "machine"
    assert host_memory.oom_kills() is None and host_memory.machine_oom_kills() is None
    assert host_memory.resident(1) == (0, 0)


def test_this_process():
    now, most = host_memory.resident(os.getpid())
    assert 2**20 < now <= most
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, before[1]))
        assert [(limit.name, limit.bytes) for limit in host_memory.own_limits()] == [
            ("ulimit -v", 1 << 40)
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert host_memory.own_limits() == []
