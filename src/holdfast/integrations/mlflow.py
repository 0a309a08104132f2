"""MLflow: parameters once, metrics by optimizer step, tags, and files at the end.

Without ``MLFLOW_TRACKING_URI`` the database is ``mlruns.db`` in the working directory, in WAL mode
so that readers and several runs get along. What cannot be delivered after some tries goes to
``RUN/track/mlflow_spill.jsonl`` and is delivered before anything else the next time: by this
process, by a resumed run, or by ``holdfast track RUN --to mlflow``. A metric that is delivered
twice is one in MLflow, because its time is that of the record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import TrackSettings
from ..launcher.tracking import URI_VARIABLE
from ..run import Run
from ..run.jsonl import line, read_lines
from .base import About, Ending, Note, Point

DEFAULT_URI = "sqlite:///mlruns.db"
SPILL = "mlflow_spill.jsonl"
_SQLITE = "sqlite:///"
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}
# What one call of MLflow takes.
_PARAMS, _METRICS = 100, 1000
_LONGEST = 5000
_NO_NAME = re.compile(r"[^\w\-. :/]")

Record = dict[str, Any]


class MlflowSink:
    """Delivers records to one run of MLflow, and keeps those that it cannot deliver.

    Args:
        run: whose folder keeps the spill.
        settings: names.
        say: one line for people.
        busy: seconds that a call waits for a locked database.
        waits: seconds between two tries.
    """

    kind = "mlflow"

    def __init__(
        self,
        run: Run,
        settings: TrackSettings,
        say: Callable[[str], None],
        *,
        busy: float = 30.0,
        waits: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    ) -> None:
        self.target = _absolute(os.environ.get(URI_VARIABLE) or DEFAULT_URI)
        self._spill = run.track_folder / SPILL
        self._say, self._busy, self._waits = say, busy, waits
        self._own: dict[str, Any] = {}
        self._client: Any = None
        self._about: About | None = None
        self._reported = self._listening = False

    @property
    def waiting(self) -> bool:
        """Whether the spill holds records."""
        return self._spill.is_file()

    def begin(self, about: About, own: dict[str, Any]) -> None:
        """A new run of MLflow, or the one that the run folder remembers."""
        self._about, self._own = about, own
        records: list[Record] = []
        if not own.get("described"):
            own["described"] = True
            params = list(about.params.items())
            records = [
                {"params": dict(params[i : i + _PARAMS])} for i in range(0, len(params), _PARAMS)
            ]
        self._deliver([*records, {"tags": dict(about.tags)}, {"status": "RUNNING"}])

    def write(self, points: Sequence[Point], notes: Sequence[Note]) -> None:
        """Metrics; the newest note of each kind is a tag."""
        metrics = [
            [_NO_NAME.sub("_", key), value, int(1000 * point.time), point.step]
            for point in points
            for key, value in point.values.items()
        ]
        records: list[Record] = [
            {"metrics": metrics[i : i + _METRICS]} for i in range(0, len(metrics), _METRICS)
        ]
        reported = {
            f"holdfast.last_{note.kind}": f"step {note.step}: {note.text}" for note in notes
        }
        self._deliver([*records, *([{"tags": reported}] if reported else [])])

    def end(self, ending: Ending) -> None:
        """Tags, files, and the status."""
        root = self._spill.parent.parent
        files = [[str(path), str(path.parent.relative_to(root))] for path in ending.files]
        status = {"status": _STATUS.get(ending.word, "FAILED"), "time": int(1000 * ending.time)}
        self._deliver([{"tags": dict(ending.tags)}, {"files": files}, status])
        left = len(read_lines(self._spill).objects)
        if left:
            self._say(
                f"MLflow did not take {left} records; they wait in {self._spill} for: "
                f"holdfast track {root} --to mlflow"
            )

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _deliver(self, records: Sequence[Record]) -> None:
        """Deliver, older records first; keep what cannot be delivered."""
        waiting = read_lines(self._spill).objects
        todo = [*waiting, *records]
        # Once something waits, one try a time is enough: the next call comes soon.
        error = self._try(todo, self._waits if not waiting else ())
        if error is not None:
            self._keep(todo, error)
        elif waiting:
            self._spill.unlink(missing_ok=True)

    def _keep(self, records: Sequence[Record], error: Exception) -> None:
        temporary = self._spill.with_suffix(".tmp")
        temporary.write_bytes(b"".join(map(line, records)))
        os.replace(temporary, self._spill)
        if not self._reported:
            self._reported = True
            reason = " ".join(str(error).split())[:200]
            self._say(f"MLflow at {self.target} does not answer ({reason}); it is tried again")

    def _try(self, records: list[Record], waits: Sequence[float]) -> Exception | None:
        """Deliver in order; what was delivered is taken off the list. The last error, if any."""
        error: Exception | None = None
        for wait in (0.0, *waits):
            time.sleep(wait)
            try:
                while records:
                    self._send(records[0])
                    del records[0]
                return None
            # Of a database, of a server, of a version of MLflow: nobody else may learn of it.
            except Exception as failed:
                error = failed
                self._client = None
                code = getattr(failed, "error_code", "")
                if code == "RESOURCE_DOES_NOT_EXIST":
                    self._own.pop("run_id", None)  # somebody has removed it
                elif code == "INVALID_PARAMETER_VALUE" and records:
                    # No later try will go better, and those behind it must not wait for it.
                    del records[0]
                    self._say(f"MLflow refused a record: {' '.join(str(failed).split())[:200]}")
        return error if records else None

    def _send(self, record: Record) -> None:
        from mlflow.entities import Metric, Param, RunTag

        client, run = self._connected()
        if "metrics" in record:
            metrics = [Metric(key, float(v), at, step) for key, v, at, step in record["metrics"]]
            client.log_batch(run, metrics=metrics)
        elif "params" in record:
            params = [Param(_NO_NAME.sub("_", k), v) for k, v in record["params"].items()]
            client.log_batch(run, params=params)
        elif "tags" in record:
            tags = [RunTag(k, v[:_LONGEST]) for k, v in record["tags"].items()]
            client.log_batch(run, tags=tags)
        elif "files" in record:
            for path, folder in record["files"]:
                if Path(path).is_file():
                    client.log_artifact(run, path, None if folder == "." else folder)
        elif record["status"] == "RUNNING":
            client.update_run(run, status="RUNNING")
        else:
            client.set_terminated(run, status=record["status"], end_time=record["time"])

    def _connected(self) -> tuple[Any, str]:
        """The client, and the id of the run, which is made with the first record."""
        if self._client is not None:
            return self._client, self._own["run_id"]
        if self.target.startswith(_SQLITE):
            self._prepare_database(Path(self.target.removeprefix(_SQLITE)))
        # holdfast sends nothing anywhere unless it is asked to.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.target)
        if "run_id" not in self._own:
            self._own["run_id"] = self._new_run(client)
        self._client = client
        return client, self._own["run_id"]

    def _new_run(self, client: Any) -> str:
        about = self._about
        assert about is not None  # begin comes first
        experiment = client.get_experiment_by_name(about.experiment)
        # Where another run makes it just now, this raises, and the next try finds it.
        number = (
            client.create_experiment(about.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        run = client.create_run(number, int(1000 * about.began), run_name=about.name)
        return run.info.run_id

    def _prepare_database(self, path: Path) -> None:
        """WAL mode, and proof that the database can be written to now; raises where it cannot.

        MLflow itself would try for minutes before it says so.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=self._busy)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
        self._be_patient()

    def _be_patient(self) -> None:
        """Have every connection of this process wait for a locked database."""
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        if self._listening:
            return
        self._listening = True
        busy = int(1000 * self._busy)

        @event.listens_for(Engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            connection.execute(f"PRAGMA busy_timeout={busy}")


def _absolute(uri: str) -> str:
    """A database file by its full path: the next call may be made from another folder."""
    if not uri.startswith(_SQLITE) or uri == _SQLITE:
        return uri
    return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
