"""`CollectingSaver`: where checkpoints of a thread are deleted, its KV windows are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from agentkv.integrations.chat import ChatAgentKV
from agentkv.integrations.evictable import newest_handle


class CollectingSaver(BaseCheckpointSaver[Any]):
    """Any checkpointer, whose deletions reach the windows of these chat models.

    ``delete_thread`` closes the thread's windows. ``prune`` and ``delete_for_runs`` close those that no
    checkpoint leads to any more. What the wrapped saver cannot do raises its NotImplementedError. A window
    holds nothing that is not computed again from messages, so closing one too many costs time only.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], *chats: ChatAgentKV) -> None:
        super().__init__(serde=saver.serde)
        self.saver, self.chats = saver, chats

    @property
    def config_specs(self) -> list[Any]:
        return self.saver.config_specs

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> CollectingSaver:
        return CollectingSaver(self.saver.with_allowlist(extra_allowlist), *self.chats)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self.saver.list(config, filter=filter, before=before, limit=limit)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.saver.put_writes(config, writes, task_id, task_path)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.saver.get_delta_channel_history(config=config, channels=channels)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints and close its windows."""
        self.saver.delete_thread(thread_id)
        self._drop([thread_id])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs wrote, and close the windows that nothing leads to any more."""
        threads = {_thread(c) for run in run_ids for c in self.saver.list(None, filter={"run_id": run})}
        self.saver.delete_for_runs(run_ids)
        self._keep({thread: self._handles(thread) for thread in threads})

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread's checkpoints. The copy opens windows of its own at its first call."""
        self.saver.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune checkpoints, and close the windows that nothing leads to any more."""
        self.saver.prune(thread_ids, strategy=strategy)
        self._keep({thread: self._handles(thread) for thread in thread_ids})

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.saver.aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async for found in self.saver.alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self.saver.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.saver.aput_writes(config, writes, task_id, task_path)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self.saver.aget_delta_channel_history(config=config, channels=channels)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.saver.adelete_thread(thread_id)
        await asyncio.to_thread(self._drop, [thread_id])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        threads = {
            _thread(c) for run in run_ids async for c in self.saver.alist(None, filter={"run_id": run})
        }
        await self.saver.adelete_for_runs(run_ids)
        left = {thread: await self._ahandles(thread) for thread in threads}
        await asyncio.to_thread(self._keep, left)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.saver.acopy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self.saver.aprune(thread_ids, strategy=strategy)
        left = {thread: await self._ahandles(thread) for thread in thread_ids}
        await asyncio.to_thread(self._keep, left)

    def _handles(self, thread: str) -> set[str]:
        return {handle for found in self.saver.list(_config(thread)) for handle in _handles(found)}

    async def _ahandles(self, thread: str) -> set[str]:
        return {handle async for found in self.saver.alist(_config(thread)) for handle in _handles(found)}

    def _drop(self, threads: Sequence[str]) -> None:
        for chat in self.chats:
            for thread in threads:
                chat.delete_thread(thread)

    def _keep(self, handles: Mapping[str, set[str]]) -> None:
        """Close the windows of these threads that their handles do not lead to."""
        for chat in self.chats:
            for thread, left in handles.items():
                chat.keep_windows(thread, left)


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def _thread(found: CheckpointTuple) -> str:
    return str(found.config["configurable"]["thread_id"])


def _handles(found: CheckpointTuple) -> Iterator[str]:
    """Windows that a checkpoint goes on from: those of the last answers in its lists of messages, and in
    what its tasks have written so far."""
    written = (value for _, _, value in found.pending_writes or ())
    for value in (*found.checkpoint["channel_values"].values(), *written):
        messages = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if (handle := newest_handle(messages)) is not None:
            yield handle
