"""A storage for ``torch.distributed.checkpoint``: files of safetensors and an index in JSON.

Its planners say which parts of which chunks are to be written and read; this writes one data file
per rank and reads them, each chunk against its checksum. ``dcp.save(state,
storage_writer=FolderWriter(path))`` and ``dcp.load(state, storage_reader=FolderReader(path))`` work
as well, for a state of tensors only: other values would be pickled and are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint import (
    ChunkStorageMetadata,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    LoadPlan,
    LoadPlanner,
    Metadata,
    SavePlan,
    SavePlanner,
    StorageReader,
    StorageWriter,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    ReadItem,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ...errors import CheckpointError
from ...regular_files import open_regular
from ...run.durable import TEMPORARY, make_folder, opener, sync_folder
from .. import layout
from ..record import changed, damaged, read_record, unreadable
from ..stream import KEY, put, tensor_bytes, tensor_from, true_dtype
from ..tree import form
from .index import data_name, make_index, publish
from .places import PartPlace


@dataclass(frozen=True, slots=True)
class LocalPart:
    """A local tensor and its place, as the planners take it: what a copied ``DTensor`` becomes."""

    tensor: Tensor
    place: PartPlace

    def size(self) -> torch.Size:
        """The global shape."""
        return torch.Size(self.place.shape)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        if self.place.shape and 0 in self.place.size:
            return []
        return [ChunkStorageMetadata(torch.Size(self.place.offset), torch.Size(self.place.size))]

    def __create_write_items__(self, fqn: str, part: Any) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk, TensorProperties.create_from_tensor(self.tensor), self.size()
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]


class PartSavePlanner(DefaultSavePlanner):
    """The default planner, for ``LocalPart``s beside tensors."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What is to be written."""
        found: Any = self.state_dict[index.fqn]
        return found.tensor if isinstance(found, LocalPart) else super().lookup_object(index)


class PartLoadPlanner(DefaultLoadPlanner):
    """The default planner, for ``LocalPart``s beside tensors."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is to be filled as it is: there is no meta tensor in it to be made first."""
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """What is to be filled."""
        found: Any = self.state_dict[index.fqn]
        return found.tensor if isinstance(found, LocalPart) else super().lookup_tensor(index)


# Writing.


class FolderWriter(StorageWriter):
    """Writes the data file of one rank; with ``dcp.save`` the coordinator writes the index too.

    Args:
        folder: the checkpoint's.
        own: tensors that only this rank has; they are written beside those of the plan.
        structure: what a reader needs to put the state together, as plain data.
        meta: fields for the index: ``step``, ``metrics`` and the like.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        rank: int | None = None,
        own: Mapping[str, Tensor] | None = None,
        structure: Any = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._rank = rank
        self._own = dict(own or {})
        self._structure = structure
        self._meta = dict(meta or {"step": 0})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new save begins, perhaps into another folder."""
        self.folder = self.folder if checkpoint_id is None else Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn which rank this is, and make the folder."""
        if self._rank is None:
            self._rank = distributed.get_rank() if distributed.is_initialized() else 0
        make_folder(self.folder)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse what would be pickled."""
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                raise CheckpointError(
                    f"{item.index.fqn} is no tensor and would be pickled; "
                    "save it as JSON beside the checkpoint, or as a tensor"
                )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As the planner made it."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the file of this rank; its results say where each chunk stands in it."""
        part, results = self.write_part(plan, planner)
        first = WriteResult(MetadataIndex("", index=self._rank), int(part["bytes"]), part)
        done: Future[list[WriteResult]] = Future()
        done.set_result([first, *results])
        return done

    def write_part(
        self, plan: SavePlan, planner: SavePlanner
    ) -> tuple[dict[str, Any], list[WriteResult]]:
        """Write the file of this rank: its part of the index, and the results for the planner."""
        shared = [(item, cast("Tensor", planner.resolve_data(item))) for item in plan.items]
        named = [(item.index.fqn, tensor) for item, tensor in shared] + list(self._own.items())
        rank = cast("int", self._rank)
        path = self.folder / data_name(rank)
        temporary = path.with_name(path.name + TEMPORARY)
        with open(temporary, "wb", buffering=0, opener=opener) as file:
            head, places = _write(file, named, self._structure)
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
        sync_folder(self.folder)
        chunks: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        results: list[WriteResult] = []
        for item, tensor in shared:
            name, data = item.index.fqn, cast("TensorWriteData", item.tensor_data)
            tensors[name] = [form(tensor)[0], list(data.size)]
            chunks[name] = [list(data.chunk.offsets), list(data.chunk.sizes), *places[name]]
            results.append(WriteResult(item.index, places[name][1] - places[name][0], None))
        own = {name: [*form(tensor), *places[name]] for name, tensor in self._own.items()}
        part = {
            "rank": rank, "file": path.name, "bytes": size, "head": head,
            "sha256": hashlib.sha256("".join([head[1], *(p[2] for p in places.values())]).encode())
            .hexdigest(),
            "tensors": tensors, "chunks": chunks, "own": own,
        }  # fmt: skip
        return part, results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, from what every rank has written."""
        publish(self.folder, make_index([one[0].storage_data for one in results], self._meta))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any path will do."""
        return True

    def storage_meta(self) -> StorageMeta:
        """Where it is."""
        return StorageMeta(checkpoint_id=str(self.folder))


def _write(
    file: Any, named: Sequence[tuple[str, Tensor]], structure: Any
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Write tensors into an empty file: its head, and where each stands, with checksums."""
    # Wider elements first: every tensor begins at a multiple of its element's size.
    ordered = sorted(named, key=lambda one: -one[1].element_size())
    pieces: list[layout.StoredTensor] = []
    raw: dict[str, Any] = {}
    for name, tensor in ordered:
        dtype, shape = form(tensor)
        if dtype not in layout.CODES:
            raw[name] = [dtype, list(shape), False]
            shape = (tensor.nbytes,)
        pieces.append(
            layout.StoredTensor(name, layout.CODES.get(dtype, layout.RAW), shape, tensor.nbytes)
        )
    text = json.dumps({"skeleton": structure, "raw": raw}, separators=(",", ":"))
    head = layout.header(pieces, {"format": "pt", KEY: text})
    hashing = hashlib.sha256()
    put(file, head, hashing)
    at, places = len(head), dict[str, list[Any]]()
    found = [len(head), hashing.hexdigest()]
    for name, tensor in ordered:
        hashing = hashlib.sha256()
        put(file, tensor_bytes(tensor, name), hashing)
        places[name] = [at, at + tensor.nbytes, hashing.hexdigest()]
        at += tensor.nbytes
    return found, places


# Reading.


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk in the file of one rank."""

    size: tuple[int, ...]
    file: str
    begin: int
    end: int
    sha256: str


class FolderReader(StorageReader):
    """Reads the folder of a checkpoint; what is read has been proven, chunk by chunk."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._fields: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The index."""
        if self._fields is None:
            self._fields = read_record(self.folder)
        return self._fields

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new load begins, perhaps from another folder."""
        if checkpoint_id is not None:
            self.folder, self._fields = Path(checkpoint_id), None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What there is to read, in the planners' words."""
        tensors: dict[str, Any] = {}
        storage: dict[MetadataIndex, _Chunk] = {}
        for name, chunks in self.fields["chunks"].items():
            dtype, shape = self.fields["tensors"][name]
            tensors[name] = TensorStorageMetadata(
                TensorProperties(true_dtype(dtype, name)),
                torch.Size(shape),
                [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size, *_ in chunks],
            )
            for at, size, *rest in chunks:
                storage[MetadataIndex(name, at)] = _Chunk(tuple(size), *rest)
        return Metadata(tensors, storage_data=storage)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Take what ``read_metadata`` gave."""
        self._chunks = cast("dict[MetadataIndex, _Chunk]", metadata.storage_data)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As the planner made it."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As the planner made it."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read every chunk that the plan needs once, and fill its places from it."""
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            if item.type is not LoadItemType.TENSOR:
                raise CheckpointError(f"{item.storage_index.fqn} is no tensor of {self.folder}")
            wanted.setdefault(item.storage_index, []).append(item)
        # In the order of the files: disks like it.
        places = sorted(wanted, key=lambda at: (self._chunks[at].file, self._chunks[at].begin))
        for index in places:
            saved = self._read(index)
            for item in wanted[index]:
                part = saved
                for dimension, (at, length) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    part = part.narrow(dimension, at, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any path will do."""
        return True

    def own(self, rank: int) -> tuple[Any, dict[str, Tensor]]:
        """What one rank has saved for itself: the structure, and its own tensors."""
        name = data_name(rank)
        one = self.fields["files"][name]
        length, sha256 = one["head"]
        head = layout.read_header(
            _reads(self._bytes(name, 0, length, sha256, "the head")), one["bytes"]
        )
        structure = json.loads(head.metadata[KEY])["skeleton"]
        own = {
            tensor: tensor_from(self._bytes(name, begin, end, sha, tensor), dtype, shape, tensor)
            for tensor, (dtype, shape, begin, end, sha) in one["own"].items()
        }
        return structure, own

    def chunks(self, name: str) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """The chunks of one tensor with their offsets, one at a time in memory."""
        dtype, _ = self.fields["tensors"][name]
        for at, size, file, begin, end, sha in self.fields["chunks"][name]:
            data = self._bytes(file, begin, end, sha, name)
            yield tuple(at), tensor_from(data, dtype, size, name)

    def _read(self, index: MetadataIndex) -> Tensor:
        chunk = self._chunks[index]
        data = self._bytes(chunk.file, chunk.begin, chunk.end, chunk.sha256, index.fqn)
        return tensor_from(data, self.fields["tensors"][index.fqn][0], chunk.size, index.fqn)

    def _bytes(self, name: str, begin: int, end: int, sha256: str, what: str) -> bytearray:
        """Bytes of a file, which are what was written."""
        one = self.fields["files"][name]
        rank = int(one["rank"])
        if not 0 <= begin <= end <= one["bytes"]:
            raise damaged(self.folder, f"{what} has no place in {name}")
        data = bytearray(end - begin)
        try:
            with open_regular(self.folder / name) as file:
                file.seek(begin)
                file.readinto(data)
        except FileNotFoundError as error:
            raise damaged(self.folder, f"{name}, the data of rank {rank}, is missing") from error
        except OSError as error:
            raise unreadable(self.folder / name, error) from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise changed(self.folder, name, rank, what)
        return data


def _reads(data: bytearray) -> Any:
    at = 0

    def read(count: int) -> bytearray:
        nonlocal at
        at += count
        return data[at - count : at]

    return read
