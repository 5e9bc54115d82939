"""After a crash or a power cut, the files are not in the promised state."""

from __future__ import annotations

from tests.faults.fault import Fault

LOG_CRASH = "tests/crash/test_log_crash.py"
ADOPT_FAULTS = "tests/crash/test_adopt_faults.py"
ADOPT_CRASH = "tests/crash/test_adopt_crash.py"
RETENTION_CRASH = "tests/crash/test_retention_crash.py"
DELETION = "tests/crash/test_deletion_durable.py"
NAMES = "tests/crash/test_names_out_of_order.py"
SWAP_CRASH = "tests/crash/test_swap_crash.py"
TOPIC_CRASH = "tests/crash/test_topic_deletion_crash.py"
CLEANER_CRASH = "tests/crash/test_cleaner_crash.py"
FLUSH = "tests/storage/log/test_flush.py"
LOG = "tests/storage/log/test_log.py"
MANAGER = "tests/storage/directory/test_manager.py"
RESCUE = "tests/storage/log/test_rescue.py"
TRANSACTIONS = "tests/storage/log/test_transactions.py"
SHOWN_TRANSACTIONS = "tests/kafkafs/tree/partition/test_transactions.py"
PARTITION_TEXT = "tests/kafkafs/tree/partition/test_partition_text.py"
FILES = "tests/storage/test_files.py"
REWRITE = "tests/kafkafs/tree/partition/test_rewrite.py"

FAULTS = [
    Fault(
        "small-file-not-synced-before-its-rename",
        "storage/files.py",
        """\
            self.pwrite(fd, data, 0)
            if sync:
                self.fsync(fd)
""",
        """\
            self.pwrite(fd, data, 0)
""",
        "A checkpoint, a topic's settings or the adoptions are empty after a power cut.",
        (LOG_CRASH,),
    ),
    Fault(
        "directory-not-synced-after-a-small-files-rename",
        "storage/files.py",
        """\
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    @contextlib.contextmanager
    def replacing(""",
        """\

    @contextlib.contextmanager
    def replacing(""",
        "A power cut restores the old content of a checkpoint that was reported as durable.",
        (FILES,),
    ),
    Fault(
        "failed-flush-finishes-as-a-good-one",
        "storage/log/flush.py",
        "        self.done = False\n        self._ns = 0",
        "        self.done = True\n        self._ns = 0",
        "The recovery point moves past records that no fsync has confirmed.",
        (DELETION,),
    ),
    Fault(
        "flush-indexes-of-the-active-segment-only",
        "storage/segment/segment.py",
        "            self.disk.fdatasync(self.log_fd())\n            self.check_whole()",
        "            self.check_whole()",
        "fsync returns without an error, but a power cut loses the records.",
        (LOG_CRASH,),
    ),
    Fault(
        "flush-a-sealed-segments-files-are-not-synced",
        "storage/segment/segment.py",
        "                self.disk.fdatasync(fd)\n            except",
        "                assert fd >= 0\n            except",
        "A power cut loses flushed records of the segments before the active one.",
        ("tests/crash/test_recovered_durable.py",),
    ),
    Fault(
        "flush-does-not-ask-the-descriptors-that-know-of-a-failed-write",
        "storage/segment/segment.py",
        "                if fd >= 0:\n                    self.disk.fdatasync(fd)",
        "                pass",
        "If another process has got the error of a failed write, the segment counts as flushed.",
        ("tests/storage/segment/test_segment.py",),
    ),
    Fault(
        "flush-transaction-index-not-synced",
        "storage/segment/segment.py",
        """\
        if self._txn_index is not None:
            self._txn_index.sync()
        if self.sealed:
            self._sync_by_new_descriptors()
""",
        """\
        if self.sealed:
            self._sync_by_new_descriptors()
""",
        "Aborted records are shown after a power cut.",
        (LOG_CRASH,),
    ),
    Fault(
        "flush-directory-not-synced",
        "storage/log/flush.py",
        "        if self._directory is not None:\n"
        "            files.sync_directory(self._directory)\n"
        "        self.done = True\n        self._durability",
        "        self.done = True\n        self._durability",
        "A segment that was flushed has no name after a power cut.",
        (LOG_CRASH,),
    ),
    Fault(
        "flush-snapshots-not-synced",
        "storage/log/flush.py",
        "        for offset in self._snapshots:\n"
        "            self._sync_snapshot(offset)\n"
        "        files = self._log.files\n        if self._epochs",
        "        files = self._log.files\n        if self._epochs",
        "A power cut loses the state of producers whose records were deleted.",
        (RETENTION_CRASH, LOG_CRASH, DELETION),
    ),
    Fault(
        "flush-failed-fsync-not-remembered",
        "storage/log/flush.py",
        "        self._log.flush_error = error\n        path",
        "        path",
        "Appends continue after pages that the kernel has dropped.",
        (RESCUE,),
    ),
    Fault(
        "flush-failed-fsync-not-remembered-over-a-restart",
        "storage/log/flush.py",
        "            files.close(files.open(path, os.O_WRONLY | os.O_CREAT))",
        "            _ = path, files",
        "After a kill the pages that the kernel has dropped are trusted.",
        (RESCUE,),
    ),
    Fault(
        "flush-not-tried-again-after-a-failure",
        "storage/log/flush.py",
        "            log.group.counters.flush_failures += 1\n"
        "            durability.mark_unflushed()\n",
        "            log.group.counters.flush_failures += 1\n",
        "After a failed fsync without new records, the partition refuses all appends for ever.",
        (RESCUE,),
    ),
    Fault(
        "flush-a-name-made-meanwhile-counts-as-synced",
        "storage/log/flush.py",
        "        if self._directory is not None and self._directory_changes =="
        " durability.directory_changes:\n",
        "        if self._directory is not None and durability:\n",
        "A roll during a flush leaves a segment without a name after a power cut.",
        (FLUSH,),
    ),
    Fault(
        "flush-epochs-begun-meanwhile-count-as-written",
        "storage/log/epochs.py",
        "        if entries == self.entries:\n            self.is_unflushed = False",
        "        if entries:\n            self.is_unflushed = False",
        "A leader epoch is missing from its checkpoint until the next one begins.",
        ("tests/storage/log/test_epochs.py",),
    ),
    Fault(
        "flush-snapshots-written-meanwhile-count-as-synced",
        "storage/log/flush.py",
        "        durability.snapshots.unsynced.difference_update(self._snapshots)",
        "        log.snapshots.unsynced.clear()",
        "A roll during a flush, a deletion, then a power cut: the producers' state is lost.",
        (DELETION,),
    ),
    Fault(
        "flush-the-segment-before-the-recovery-points-is-left-out",
        "storage/log/flush.py",
        "            for segment in log.segments_from(max(self.recovery_point - 1, 0))\n"
        "            if segment.next_offset >= self.recovery_point or segment is log.active\n",
        "            for segment in log.segments_from(self.recovery_point)\n",
        "After a power cut the zeros that were allocated ahead are called damage.",
        (FLUSH,),
    ),
    Fault(
        "flush-after-one-that-failed-is-acknowledged",
        "storage/log/flush.py",
        "            self._log.check_no_flush_error()\n            if self._number",
        "            if self._number",
        "The kernel reports a failed write once: another fsync is answered with success.",
        (RESCUE,),
    ),
    Fault(
        "flush-that-succeeded-before-one-that-failed-forgets-it",
        "storage/log/flush.py",
        "        if self._log.flush_error is not None:\n            return\n",
        "        if offset < 0:\n            return\n",
        "A partition whose fsync has failed refuses all appends until a remount.",
        (RESCUE,),
    ),
    Fault(
        "flush-that-began-earlier-replaces-newer-epochs",
        "storage/log/flush.py",
        "            if self._number < durability.newest_synced:\n",
        "            if self._number < 0:\n",
        "A leader epoch is missing from its checkpoint until the next one begins.",
        (FLUSH,),
    ),
    Fault(
        "marker-is-in-the-log-before-what-follows-it-can-be-read",
        "storage/log/transactions.py",
        "        if any(batch.marker_type >= 0 for batch in update.batches):\n",
        "        if any(batch.marker_type > 1 for batch in update.batches):\n",
        "A marker that is in the log is answered with EIO, and written again.",
        (TRANSACTIONS,),
    ),
    Fault(
        "append-that-cannot-be-measured-is-refused",
        "kafkafs/line_index/segment_lines.py",
        "            at_once(self._feed, data, size)\n        except (OSError, StorageError):\n",
        "            at_once(self._feed, data, size)\n        except StorageError:\n",
        "Records that are in the log are answered with an error, and written again.",
        (SHOWN_TRANSACTIONS,),
    ),
    Fault(
        "roll-whose-blocks-cannot-be-counted-is-not-told",
        "kafkafs/tree/partition/partition.py",
        "            except OSError:\n                self._sealed_blocks = None",
        "            except BlockingIOError:\n                self._sealed_blocks = None",
        "Views keep reading a segment that gets no more appends.",
        (PARTITION_TEXT,),
    ),
    Fault(
        "failed-flush-not-counted",
        "storage/log/flush.py",
        "            log.group.counters.flush_failures += 1\n",
        "            pass\n",
        "The metric of failed flushes stays 0.",
        (FLUSH, LOG, DELETION),
    ),
    Fault(
        "retention-unsynced-snapshots-are-no-reason-to-flush",
        "storage/directory/retain.py",
        "            lambda: log.durability.recovery_point < self.log_start or"
        " bool(log.snapshots.unsynced)",
        "            lambda: log.durability.recovery_point < self.log_start",
        "After a head is deleted, a power cut loses the state of its producers.",
        (DELETION, RETENTION_CRASH),
    ),
    Fault(
        "retention-what-goes-is-not-flushed-first",
        "storage/directory/retain.py",
        "            log.flush(task.on_log_thread)\n        self.prepare(task)",
        "            _ = log.flush\n        self.prepare(task)",
        "A log start above what is on the disk after a power cut.",
        (RETENTION_CRASH,),
    ),
    Fault(
        "retention-history-not-written-down-first",
        "storage/directory/retain.py",
        "        task.on_log_thread(self._prepare)()\n",
        "        _ = self._prepare\n",
        "A deletion blocks all other requests on a slow disk, and runs though the disk is full.",
        (REWRITE,),
    ),
    Fault(
        "retention-log-starts-not-written-down-before-it-deletes",
        "storage/directory/retain.py",
        '            task.begin("deleting", sum(advance.size for advance in flushed))\n'
        "            directory.checkpoint_logs([advance.log for advance in flushed], task)\n"
        "        for advance",
        '            task.begin("deleting", sum(advance.size for advance in flushed))\n'
        "        for advance",
        "Half of a deletion is undone by a power cut.",
        (RETENTION_CRASH,),
    ),
    Fault(
        "retention-an-intended-log-start-is-not-told",
        "storage/directory/retain.py",
        "        self.log.pending_log_starts.append(self.log_start)",
        "        _ = self.log.pending_log_starts",
        "Deleted records come back after a kill.",
        (RETENTION_CRASH,),
    ),
    Fault(
        "retention-given-up-its-log-start-stays-written-down",
        "storage/directory/retain.py",
        "    if any(advance.is_given_up for advance in advances):\n",
        "    if any(advance.is_given_up for advance in advances[:0]):\n",
        "A kill loses records that the failed deletion has kept.",
        (RETENTION_CRASH, "tests/storage/directory/test_retain.py"),
    ),
    Fault(
        "delete-records-log-start-not-written-down",
        "storage/directory/retain.py",
        "        directory.checkpoint_logs([log], task)\n        try:",
        "        try:",
        "Deleted records are back after a kill.",
        (RETENTION_CRASH, "tests/storage/log/test_delete_records.py"),
    ),
    Fault(
        "log-start-forgotten-while-a-deletion-is-not-durable",
        "storage/log/log.py",
        "        is_renamed = self.replacement is None and not self.durability.directory_unsynced",
        "        is_renamed = self.replacement is None",
        "A head deleted, then a power cut: deleted records come back.",
        (DELETION,),
    ),
    Fault(
        "log-start-forgotten-while-deleted-files-are-there",
        "storage/log/log.py",
        "        certain = is_renamed and not self.retired",
        "        certain = is_renamed",
        "A kill within a deletion beside a checkpoint: deleted records come back.",
        (DELETION,),
    ),
    Fault(
        "log-start-forgotten-while-a-swap-is-unfinished",
        "storage/log/log.py",
        "        is_renamed = self.replacement is None and not self.durability.directory_unsynced",
        "        is_renamed = not self.durability.directory_unsynced",
        "A deletion after a swap that was not taken back, then a kill: deleted records come back.",
        ("tests/crash/test_cleaner_faults.py",),
    ),
]
