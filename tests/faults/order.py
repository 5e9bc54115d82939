"""One thing comes before another that a crash, or somebody else, must find first."""

from __future__ import annotations

from tests.faults.fault import Fault

ADOPT = "tests/storage/adopt/test_adopt.py"
ADOPT_FAULTS = "tests/crash/test_adopt_faults.py"
ADOPT_CRASH = "tests/crash/test_adopt_crash.py"
CLEANER_CRASH = "tests/crash/test_cleaner_crash.py"
CLEANER_FAULTS = "tests/crash/test_cleaner_faults.py"
NAMES = "tests/crash/test_names_out_of_order.py"
SWAP_CRASH = "tests/crash/test_swap_crash.py"
TOPIC_CRASH = "tests/crash/test_topic_deletion_crash.py"
LOG_CRASH = "tests/crash/test_log_crash.py"
MANAGER = "tests/storage/directory/test_manager.py"
TIERED = "tests/storage/directory/test_tiered.py"
PUBLISH_CRASH = "tests/crash/test_publish_crash.py"
RESCUE = "tests/storage/log/test_rescue.py"
APPEND = "tests/storage/log/test_append.py"
APPEND_QUEUE = "tests/storage/log/test_append_queue.py"
SLOW = "tests/mount/contract/test_slow_disk.py"
FOLLOW = "tests/storage/follow/test_follow.py"
NEW = "tests/mount/contract/test_new_partitions.py"

FAULTS = [
    # -- adoption ------------------------------------------------------------------------------
    Fault(
        "adopt-what-the-disk-left-open-is-forgotten",
        "storage/adopt/adopt.py",
        "            self.adopter.undecided = begun\n",
        "            _ = begun\n",
        "EIO at one fsync of the commit, a restart, the same batch again: its rows never appear.",
        (ADOPT_FAULTS,),
    ),
    Fault(
        "adopt-intent-not-written-down",
        "storage/adopt/adopt.py",
        "            adopter.save(begun)\n",
        "            adopter.adoptions = begun\n",
        "A crash leaves a transaction open that nobody knows of.",
        (ADOPT_CRASH,),
    ),
    Fault(
        "adopt-committed-before-it-is-flushed",
        "storage/adopt/adopt.py",
        "                _flush(self.logs.values(), task)\n",
        "                _ = _flush\n",
        "A batch is committed whose records a power cut takes.",
        (ADOPT_CRASH,),
    ),
    Fault(
        "adopt-markers-before-the-commit",
        "storage/adopt/adopt.py",
        "        self._commit(begun)\n        self._end()\n        self._remove",
        "        self._end()\n        self._commit(begun)\n        self._remove",
        "Markers say ABORT of what is committed then.",
        (ADOPT,),
    ),
    Fault(
        "adopt-staged-files-removed-before-the-commit",
        "storage/adopt/adopt.py",
        "        self._commit(begun)\n        self._end()\n        self._remove_staged()\n",
        "        self._remove_staged()\n        self._commit(begun)\n        self._end()\n",
        "A commit that fails cannot be asked for again.",
        (ADOPT_FAULTS, ADOPT_CRASH),
    ),
    Fault(
        "adopt-the-one-before-is-forgotten-unsettled",
        "storage/adopt/adopt.py",
        "        adopter.settle_pending(task, self.now_ns)\n        seen",
        "        seen",
        "The markers of the adoption before are never written.",
        (ADOPT_FAULTS, ADOPT),
    ),
    Fault(
        "adopt-markers-forgotten-before-they-are-durable",
        "storage/adopt/adopt.py",
        "            if not log.closed and log.durability.recovery_point < end\n",
        "            if log.durability.recovery_point < 0\n",
        "A power cut takes the marker, and nobody writes it again.",
        (ADOPT_CRASH,),
    ),
    Fault(
        "adopt-the-last-batch-once-more",
        "storage/adopt/adoptions.py",
        "        return request.batch <= self.batch",
        "        return request.batch < self.batch",
        "A batch that is asked for again is appended twice.",
        (ADOPT,),
    ),
    Fault(
        "adopt-gaps-between-batches",
        "storage/adopt/adoptions.py",
        "        follows = self.batch < 0 or request.batch == self.batch + 1",
        "        follows = self.batch < 0 or request.batch > self.batch",
        "A batch that was never adopted counts as adopted.",
        (ADOPT,),
    ),
    Fault(
        "adopt-an-older-run-goes-on",
        "storage/adopt/adoptions.py",
        "            fenced = (*fenced, query.run)[-_FENCED_KEPT:]",
        "            pass",
        "Two runs of one query write in turns.",
        (ADOPT,),
    ),
    Fault(
        "adopt-a-new-run-has-the-old-epoch",
        "storage/adopt/adoptions.py",
        "            query = replace(query, producer_epoch=query.producer_epoch + 1)",
        "            query = replace(query, producer_epoch=query.producer_epoch)",
        "What an older run still sends goes into the new run's transaction.",
        (ADOPT,),
    ),
    Fault(
        "adopt-who-only-begins-takes-the-query-over",
        "storage/adopt/adoptions.py",
        "            query = replace(query, producer_epoch=query.producer_epoch + 1)",
        "            fenced = (*query.fenced, query.run)\n"
        "            epoch = query.producer_epoch + 1\n"
        "            query = replace(query, run=request.run, fenced=fenced, producer_epoch=epoch)",
        "A late run whose adoption fails stops the current one.",
        (ADOPT,),
    ),
    Fault(
        "adopt-the-first-part-of-a-staged-file",
        "storage/log/staged_batches.py",
        "            if size != self._size:\n",
        "            if size < self._size:\n",
        "A staged file that is longer than announced is adopted in part, without an error.",
        (ADOPT,),
    ),
    Fault(
        "adopt-others-write-in-its-transaction",
        "storage/adopt/adopt.py",
        "                or (producer.transaction_first_offset, producer.last_offset) != span",
        "                or producer.last_offset < 0",
        "Another's records are committed with the batch.",
        (ADOPT,),
    ),
    Fault(
        "adopt-producer-ids-of-the-logs-are-given-again",
        "storage/adopt/adoptions.py",
        "        next_id = max(self.next_producer_id, seen_producer_id + 1)",
        "        next_id = self.next_producer_id",
        "What was copied here from elsewhere is a duplicate of what is adopted.",
        (ADOPT,),
    ),
    # -- swaps ---------------------------------------------------------------------------------
    Fault(
        "swap-old-names-not-durable-before-the-new-ones",
        "storage/compaction/replacing.py",
        "    log.files.sync_directory(log.directory)\n    for segment in last.new:",
        "    for segment in last.new:",
        "After a power cut an old segment stands beside the cleaned one.",
        (NAMES, CLEANER_CRASH),
    ),
    Fault(
        "swap-first-sync-left-out",
        "storage/recovery/swap.py",
        "    files.sync_directory(directory)\n    for segment in reversed(new[1:]):",
        "    for segment in reversed(new[1:]):",
        "A swap is decided whose files have no names after a power cut.",
        (NAMES, CLEANER_CRASH),
    ),
    Fault(
        "swap-decided-before-the-others-have-their-names",
        "storage/recovery/swap.py",
        "    files.sync_directory(directory)\n    new[0].set_suffix(paths.SWAP)",
        "    new[0].set_suffix(paths.SWAP)",
        "Half of a swap is carried out after a power cut; converting, old and new are mixed.",
        (NAMES, CLEANER_CRASH, PUBLISH_CRASH),
    ),
    Fault(
        "swap-not-durable-when-it-counts",
        "storage/recovery/swap.py",
        "    new[0].set_suffix(paths.SWAP)\n    files.sync_directory(directory)\n",
        "    new[0].set_suffix(paths.SWAP)\n",
        "Readers have the new history, and a power cut brings the old one back.",
        (NAMES, CLEANER_CRASH),
    ),
    Fault(
        "swap-given-up-not-durable",
        "storage/recovery/swap.py",
        "    if lowest or decided:\n        files.sync_directory(directory)\n",
        "    if decided:\n        files.sync_directory(directory)\n",
        "A swap that was taken back is carried out after a power cut, without some of its files.",
        (NAMES, CLEANER_CRASH, CLEANER_FAULTS),
    ),
    Fault(
        "repacked-bytes-have-their-inode-before-they-are-shown",
        "storage/log/log.py",
        "            listener.repacked(self, old, new)\n"
        "        self.history.end_repack(is_done=True)\n",
        "            self.history.end_repack(is_done=True)\n"
        "            listener.repacked(self, old, new)\n",
        "An inode of `.batches` shows bytes from before repacking, then those from after it.",
        ("tests/kafkafs/tree/partition/test_repack.py",),
    ),
    Fault(
        "swap-begun-while-repacked-files-have-no-final-names",
        "storage/compaction/repack.py",
        "            finish_last(log, task)\n",
        "            _ = finish_last\n",
        "A disk error and a later kill lose a segment: its only files end in `.swap`.",
        ("tests/crash/test_repack_crash.py",),
    ),
    Fault(
        "swap-that-an-error-interrupted-counts-as-taken-back",
        "storage/compaction/replacing.py",
        "    log.replacement = Replacement(old, new, is_done=True)\n",
        "    log.replacement = Replacement(old, new, is_done=not new)\n",
        "An error after a swap removes the only files of the cleaned segments.",
        (CLEANER_FAULTS,),
    ),
    Fault(
        "swap-not-finished-after-an-error",
        "storage/compaction/replacing.py",
        "    elif last.is_done:\n        _finish(log, last, task)\n",
        "    elif last.is_done:\n        log.replacement = None\n",
        "After a disk error and another cleaning, a start removes the segments of both.",
        (CLEANER_FAULTS, "tests/crash/test_repack_crash.py"),
    ),
    Fault(
        "swap-left-unfinished-by-the-cleaner",
        "storage/compaction/log_cleaner.py",
        "            has_work |= log.replacement is not None\n",
        "            _ = log.replacement\n",
        "The cleaner picks a log again and again, and never finishes its swap.",
        (CLEANER_FAULTS,),
    ),
    Fault(
        "swap-released-before-its-files-are-renamed",
        "storage/log/log.py",
        "            is_named = not segment.deleted and segment in replaced\n",
        "            is_named = not segment.deleted and segment.base_offset in bases\n",
        "After a disk error and a kill, superseded records are back.",
        (CLEANER_FAULTS,),
    ),
    Fault(
        "swap-not-flushed-before",
        "storage/compaction/log_cleaner.py",
        "        log.flush(task.on_log_thread)\n        known = self.first_dirty(log)\n",
        "        _ = log.flush\n        known = self.first_dirty(log)\n",
        "A record goes for one behind it that a power cut takes.",
        (CLEANER_CRASH,),
    ),
    Fault(
        "swap-history-not-written-down-first",
        "storage/compaction/replacing.py",
        "    task.on_log_thread(lambda: log.prepare_replacement(old, new))()",
        "    _ = log.prepare_replacement",
        "After a kill within a swap an inode shows other bytes.",
        ("tests/crash/test_follow_crash.py", CLEANER_CRASH),
    ),
    Fault(
        "swap-policy-not-asked-again",
        "storage/compaction/replacing.py",
        "        if not log.config.may_be_cleaned:\n            raise TaskCancelled",
        "        if False:\n            raise TaskCancelled",
        "A topic that was just set to keep everything loses records.",
        (
            "tests/storage/compaction/test_log_cleaner.py",
            "tests/storage/compaction/test_publishing.py",
        ),
    ),
    Fault(
        "finish-swaps-late-ones-not-removed-for-good",
        "storage/recovery/swap.py",
        "    _remove(files, directory, late, then_sync=True)",
        "    _remove(files, directory, late, then_sync=False)",
        "A second power cut makes an undecided swap a decided one.",
        (NAMES,),
    ),
    Fault(
        "finish-swaps-replaced-not-removed-for-good",
        "storage/recovery/swap.py",
        "    _remove(files, directory, replaced, then_sync=True)",
        "    _remove(files, directory, replaced, then_sync=False)",
        "After a second power cut an old segment stands beside the cleaned one.",
        (NAMES,),
    ),
    Fault(
        "publish-removes-before-the-names-are-durable",
        "storage/recovery/swap.py",
        "        files.sync_directory(directory)\n    for path in old:\n        files.unlink(",
        "    for path in old:\n        files.unlink(",
        "Converting, a power cut: a segment is gone.",
        (PUBLISH_CRASH,),
    ),
    # -- the data directory --------------------------------------------------------------------
    Fault(
        "checkpoint-loses-what-is-noted-meanwhile",
        "storage/directory/checkpoints.py",
        "                self.stale -= stale\n",
        "                self.stale -= stale\n                self._unwritten.clear()\n",
        "Recovery points and log starts go back: deleted records return after a kill.",
        (MANAGER,),
    ),
    Fault(
        "checkpoint-loses-what-is-noted-during-a-save",
        "storage/directory/checkpoints.py",
        "                if self._noted.get(item) is noted:\n",
        "                if item in self._noted:\n",
        "A log start that was acknowledged is not in the checkpoint: deleted records return.",
        (MANAGER,),
    ),
    Fault(
        "checkpoint-keeps-a-log-start-that-was-given-up",
        "storage/directory/retain.py",
        "            directory.note([self.log])\n",
        "            _ = directory\n",
        "A delete-records that failed deletes the records at the next start.",
        ("tests/storage/log/test_delete_records.py",),
    ),
    Fault(
        "checkpoint-declares-flushed-what-the-manifest-lacks",
        "storage/directory/checkpoints.py",
        "            log.manifest.save()\n",
        "            with contextlib.suppress(OSError):\n                log.manifest.save()\n",
        "A lost segment is not noticed: the list of segments that would name it is old.",
        (MANAGER,),
    ),
    Fault(
        "snapshot-of-a-deleted-topic-in-a-new-one",
        "storage/log/snapshots.py",
        "            if log.closed:\n                return\n",
        "            _ = log.closed\n",
        "After a crash a new topic has the producers of the old one of its name.",
        (MANAGER,),
    ),
    Fault(
        "undelete-topic-truncated-logs-not-noted",
        "storage/directory/deletion.py",
        "    directory.note(topic.partitions.values())\n",
        "    _ = directory.note\n",
        "The cleaner skips what is written where a lost end was.",
        ("tests/storage/directory/test_undelete.py",),
    ),
    Fault(
        "undelete-topic-gaps-of-the-cleaner-are-losses",
        "storage/directory/checkpoints.py",
        "                    self.cleaned_before[item] = each.cleaned\n",
        "                    _ = each.cleaned\n",
        "A topic that was cleaned, deleted and restored has lost records.",
        ("tests/storage/directory/test_undelete.py",),
    ),
    Fault(
        "checkpoint-keeps-the-lines-of-a-removed-partition",
        "storage/directory/data_directory.py",
        "        if item in self.checkpoints.stale:\n            self.write_checkpoints()\n",
        "        _ = self.write_checkpoints\n",
        "After a kill a new topic begins where the old one of its name ended.",
        (TOPIC_CRASH,),
    ),
    Fault(
        "clean-marker-though-a-log-could-not-be-closed",
        "storage/manager.py",
        "                if failure is None and (self.clean or not self._is_part_unrecovered):",
        "                if self.clean or not self._is_part_unrecovered:",
        "The next start trusts a log that was not flushed.",
        (MANAGER,),
    ),
    Fault(
        "clean-marker-over-faulty-partitions",
        "storage/manager.py",
        "                if failure is None and (self.clean or not self._is_part_unrecovered):",
        "                if failure is None:",
        "A partition that could not be opened counts as cleanly closed.",
        (MANAGER,),
    ),
    Fault(
        "clean-marker-over-tiered-logs",
        "storage/manager.py",
        "        return bool(unopened) or any(log.read_only for log in self.logs())",
        "        return bool(unopened)",
        "A broker trusts tiered logs that nobody has recovered.",
        (TIERED,),
    ),
    Fault(
        "tiered-logs-are-opened-for-writing",
        "storage/directory/partition.py",
        "    writable = not directory.read_only and tiered is None\n",
        "    writable = not directory.read_only\n",
        "Recovery cuts a tiered topic's log and writes its indexes.",
        (TIERED,),
    ),
    Fault(
        "epochs-are-cut-to-the-first-segment",
        "storage/directory/partition.py",
        "        epochs_start = start if is_brokers else max(start,",
        "        epochs_start = max(start,",
        "A broker no longer finds its remote segments, and deletes them.",
        (TIERED,),
    ),
    Fault(
        "log-start-lines-of-a-broker-go",
        "storage/log/log.py",
        "            return max([self.checkpointed_start, *self.pending_log_starts])\n",
        "            _ = self.checkpointed_start\n",
        "A broker no longer finds its remote segments, and deletes them.",
        (TIERED,),
    ),
    Fault(
        "room-is-made-from-tiered-topics",
        "storage/directory/make_room.py",
        "        if partition is not None and tiered.why(partition[0]) is not None:\n"
        "            continue\n",
        "        _ = tiered\n",
        "A full disk costs a tiered topic's segments.",
        (TIERED,),
    ),
    Fault(
        "clean-marker-before-the-checkpoints",
        "storage/manager.py",
        """\
                self.checkpoint()
                # A partition that could not be opened was not closed, and a tiered one was not
                # recovered: its broker has to do that.
                if failure is None and (self.clean or not self._is_part_unrecovered):
                    checkpoint_file.write_marker(self.files, self.path)
""",
        """\
                if failure is None and (self.clean or not self._is_part_unrecovered):
                    checkpoint_file.write_marker(self.files, self.path)
                self.checkpoint()
""",
        "A kill in between vouches for recovery points of before.",
        (LOG_CRASH,),
        unseen="What the last checkpoints say a clean start finds in the logs.",
    ),
    Fault(
        "clean-marker-not-removed-for-good",
        "storage/state/checkpoint_file.py",
        "        return\n    files.sync_directory(directory)\n",
        "        return\n",
        "The marker comes back after a power cut, and vouches for logs that were open.",
        (MANAGER,),
    ),
    Fault(
        "checkpoints-not-written-anew-after-recovery",
        "storage/manager.py",
        "                self.write_checkpoints()\n            except IgnoredEntry",
        "                _ = self.write_checkpoints\n            except IgnoredEntry",
        "What recovery has cut counts as flushed when it is written again.",
        (LOG_CRASH,),
        unseen="A log that ends below its recovery point takes nothing before it is written.",
    ),
    Fault(
        "create-topic-names-not-durable",
        "storage/directory/data_directory.py",
        "                topic.add(self._create_log(topic, partition, begun))\n"
        "            self.files.sync_directory(self.path)\n"
        "        except",
        "                topic.add(self._create_log(topic, partition, begun))\n        except",
        "A topic with flushed records is gone after a power cut.",
        (LOG_CRASH,),
    ),
    Fault(
        "create-topic-seen-before-its-owner",
        "storage/directory/data_directory.py",
        "            self.settings.begin(name, unfinished, begun)\n"
        "            files.rename(unfinished, directory)\n",
        "            files.rename(unfinished, directory)\n"
        "            self.settings.begin(name, directory, begun)\n",
        "mkdir -m 700 and a kill: everybody reads the topic.",
        (TOPIC_CRASH, MANAGER, "tests/storage/settings/test_settings.py"),
    ),
    Fault(
        "create-partition-names-not-durable",
        "storage/directory/data_directory.py",
        "            log.load_history()\n            self.files.sync_directory(self.path)\n",
        "            log.load_history()\n",
        "A partition with flushed records is gone after a power cut.",
        ("tests/storage/log/test_flush.py",),
    ),
    Fault(
        "delete-topic-names-not-durable",
        "storage/directory/deletion.py",
        "                files.sync_directory(directory.path)\n"
        "        files.sync_directory(directory.path)\n"
        "    except OSError:\n"
        "        for source, target in",
        "                files.sync_directory(directory.path)\n"
        "    except OSError:\n"
        "        for source, target in",
        "A topic that was deleted is back after a power cut.",
        ("tests/storage/log/test_flush.py",),
    ),
    Fault(
        "delete-topic-not-undone-where-it-fails",
        "storage/directory/deletion.py",
        "            files.rename(target, source)\n",
        "            pass\n",
        "rmdir says ENOSPC, and half of the topic goes at the next start.",
        ("tests/storage/directory/test_reserve.py",),
    ),
    Fault(
        "delete-topic-first-partition-last",
        "storage/directory/deletion.py",
        "moves if is_recorded else moves[::-1]",
        "moves[::-1]",
        "A kill within leaves a topic without some of its partitions.",
        (TOPIC_CRASH,),
    ),
    Fault(
        "undelete-topic-first-partition-first",
        "storage/directory/deletion.py",
        "_live(name, each)) for each in reversed(deletion.partitions)]\n",
        "_live(name, each)) for each in deletion.partitions[:]]\n",
        "A kill within leaves a topic without some of its partitions.",
        ("tests/crash/test_undelete_crash.py",),
    ),
    Fault(
        "undelete-topic-with-two-logs-on-its-files",
        "storage/directory/deletion.py",
        "    directory.deleted.end_reading(deletion)\n",
        "    _ = directory.deleted.end_reading\n",
        "A compaction that was under way at rmdir renames files of the topic that is back.",
        ("tests/storage/directory/test_undelete.py",),
    ),
    Fault(
        "undelete-topic-lines-of-the-checkpoints-later",
        "storage/directory/deletion.py",
        "        directory.write_checkpoints()\n        _rename",
        "        _ = directory.write_checkpoints\n        _rename",
        "A kill within brings deleted records back, and takes what was not flushed for lost.",
        ("tests/crash/test_undelete_crash.py",),
    ),
    Fault(
        "delete-topic-settings-stay",
        "storage/directory/deletion.py",
        "    topic.faults.clear()\n    directory.settings.forget(name)\n",
        "    topic.faults.clear()\n    _ = directory.settings.forget\n",
        "A new topic of that name has the old one's settings.",
        (MANAGER,),
        unseen="A topic that is made begins with settings of its own (Settings.begin).",
    ),
    # -- after a failed fsync ------------------------------------------------------------------
    Fault(
        "rescue-new-files-not-synced",
        "storage/log/rescue.py",
        "        files.fdatasync(fd)\n        base,",
        "        base,",
        "What was rescued is gone after a power cut.",
        (RESCUE,),
    ),
    Fault(
        "rescue-new-names-not-durable",
        "storage/log/rescue.py",
        "            files.rename(path, path.removesuffix(_NEW))\n"
        "    files.sync_directory(directory)\n",
        "            files.rename(path, path.removesuffix(_NEW))\n",
        "A power cut brings the files back that cannot be trusted.",
        (RESCUE,),
        unseen="The flush that ends it syncs the directory, as it has begun with a roll.",
    ),
    Fault(
        "rescue-snapshots-not-written-again",
        "storage/log/rescue.py",
        "        _write_snapshots(log)\n        log.files",
        "        _ = _write_snapshots\n        log.files",
        "After a failed fsync, a deletion and a power cut a batch is appended twice.",
        (RESCUE,),
    ),
    Fault(
        "rescue-forgotten-before-it-is-flushed",
        "storage/log/rescue.py",
        "    with contextlib.suppress(FileNotFoundError):\n        log.files.unlink(mark)\n",
        "    _ = contextlib, paths\n",
        "Each start rescues again what is on the disk.",
        (RESCUE,),
    ),
    Fault(
        "rescue-segment-that-ends-at-the-recovery-point-is-trusted",
        "storage/log/rescue.py",
        "        if each.next_offset >= log.durability.recovery_point and",
        "        if each.next_offset > log.durability.recovery_point and",
        "After a power cut the zeros that were allocated ahead are called damage.",
        (RESCUE,),
    ),
    Fault(
        "append-behind-a-hole",
        "storage/segment/writer.py",
        "        if disk.size(fd) < start:\n",
        "        if disk.size(fd) < 0:\n",
        "An append goes behind what somebody has cut off, and hides all of it.",
        (RESCUE,),
    ),
    Fault(
        "roll-fills-what-was-cut-off",
        "storage/segment/writer.py",
        "            if segment.disk.size(fd) > segment.size:\n",
        "            if segment.disk.size(fd) != segment.size:\n",
        "Zeros are put in the place of records.",
        (RESCUE,),
    ),
    Fault(
        "rescue-beside-a-cleaner",
        "storage/log/rescue.py",
        "    if log.cleaning:\n        raise OSError",
        "    if False:\n        raise OSError",
        "Two replace one segment at once.",
        (RESCUE,),
    ),
    # -- turns ---------------------------------------------------------------------------------
    Fault(
        "turn-not-checked",
        "storage/log/state.py",
        "            self.append_queue.check_not_queued()\n",
        "            pass\n",
        "What is appended while a slow append waits for the disk gets its offset, and its bytes.",
        (APPEND_QUEUE,),
    ),
    Fault(
        "slow-lines-of-a-topic-first",
        "kafkafs/tree/append/append_target.py",
        "        assigned.sort(key=lambda each: each[0].log.append_queue.in_use)\n",
        "        assigned.sort(key=lambda each: not each[0].log.append_queue.in_use)\n",
        "While lines for a slow partition wait, the offsets of the others are given out twice.",
        (SLOW,),
    ),
    Fault(
        "files-closed-while-an-append-waits",
        "storage/log/state.py",
        "        segment.lease()\n"
        "        try:\n"
        "            return self.append_queue.off_log_thread(function, *arguments)\n"
        "        finally:\n"
        "            segment.release()\n",
        "        return self.append_queue.off_log_thread(function, *arguments)\n",
        "An append goes to another file that has got the number of the closed one.",
        (APPEND_QUEUE,),
    ),
    Fault(
        "read-before-who-came-first",
        "kafkafs/fuse/operations.py",
        "                await self.turns.passed(handle.append_queue)\n",
        "                pass  # at once\n",
        "printf n >> p; tail -n1 p misses the line on a slow disk.",
        (SLOW,),
    ),
    # -- rolls and appends ---------------------------------------------------------------------
    Fault(
        "roll-snapshot-after-the-new-segment",
        "storage/log/log.py",
        "        self.snapshots.write(base_offset, producers)\n"
        "        where = self.files, self.directory, base_offset, self.config\n"
        "        return SegmentWriter.begin(Segment.create(*where, now_ms=now_ms))\n",
        "        where = self.files, self.directory, base_offset, self.config\n"
        "        active = SegmentWriter.begin(Segment.create(*where, now_ms=now_ms))\n"
        "        self.snapshots.write(base_offset, producers)\n"
        "        return active\n",
        "Who follows goes on in the segment of a roll that failed, and sees nothing any more.",
        (FOLLOW,),
    ),
    Fault(
        "roll-that-fails-leaves-the-segment-closed",
        "storage/log/log.py",
        "            self.durability.directory_unsynced = True\n            sealing.unseal()\n",
        "            self.durability.directory_unsynced = True\n            pass\n",
        "After a roll on a full disk no append is taken any more.",
        ("tests/storage/log/test_log.py", APPEND),
    ),
    Fault(
        "roll-that-fails-may-come-back",
        "storage/log/log.py",
        "            self.durability.directory_unsynced = True\n            sealing.unseal()",
        "            sealing.unseal()",
        "After a power cut an empty segment begins inside of the one before.",
        (NAMES,),
    ),
    Fault(
        "roll-names-not-to-be-synced",
        "storage/log/log.py",
        "        self.durability.directory_unsynced = True\n        self._roll_after_ms",
        "        _ = self.durability.directory_unsynced\n        self._roll_after_ms",
        "A flushed segment has no name after a power cut.",
        ("tests/storage/log/test_flush.py",),
    ),
    Fault(
        "append-a-new-transaction-index-has-no-name",
        "storage/log/log.py",
        "                self.durability.directory_unsynced = True\n            stabilized",
        "                pass\n            stabilized",
        "Aborted records are shown after a power cut.",
        ("tests/storage/log/test_flush.py",),
    ),
    Fault(
        "append-refused-leaves-its-abort",
        "storage/log/transactions.py",
        "                active.txn_index.truncate_to(known)\n",
        "                _ = known\n",
        "Committed records of the next transaction are hidden.",
        (APPEND,),
    ),
    Fault(
        "append-refused-is-not-cut-off",
        "storage/segment/writer.py",
        "            self._cut_back(start)\n            raise\n        first",
        "            raise\n        first",
        "What ENOSPC left of a batch stands behind the end.",
        (APPEND,),
    ),
    Fault(
        "append-that-an-index-refused-is-not-cut-off",
        "storage/segment/writer.py",
        "            self._cut_back(start)\n            for index",
        "            for index",
        "After a kill a batch that was refused is there.",
        (APPEND,),
    ),
    Fault(
        "append-cut-that-failed-is-not-done-again",
        "storage/segment/writer.py",
        "        except (OSError, CorruptRecord):\n            self._cut_pending = True",
        "        except (OSError, CorruptRecord):\n            self._cut_pending = False",
        "After a kill a batch that was refused follows one that was not.",
        (APPEND,),
    ),
    Fault(
        "roll-that-fails-leaves-half-a-snapshot",
        "storage/log/snapshots.py",
        "not take the rest for damage.\n"
        "            with contextlib.suppress(OSError):\n"
        "                files.unlink(path)\n",
        "not take the rest for damage.\n",
        "Healthy data is called damaged after a roll on a full disk.",
        (FOLLOW,),
    ),
    Fault(
        "segment-that-cannot-be-made-is-left-there",
        "storage/segment/segment.py",
        "        except OSError:\n            segment.discard()\n            raise\n",
        "        except OSError:\n            raise\n",
        "Who follows goes on in the segment of a roll that failed, and sees nothing any more.",
        (FOLLOW,),
    ),
    Fault(
        "snapshot-that-failed-counts-as-the-newest",
        "storage/log/snapshots.py",
        "                        self.newest_offset = before\n                    raise",
        "                        pass\n                    raise",
        "After a checkpoint on a full disk none is tried again, and a start reads the log.",
        (MANAGER,),
    ),
    Fault(
        "new-partition-written-anywhere",
        "kafkafs/tree/append/append_target.py",
        "        elif position != self.position:\n",
        "        elif position < 0:\n",
        "A program that skips or goes back gets records out of order, and no error.",
        (NEW,),
    ),
    Fault(
        "new-partition-written-by-two",
        "kafkafs/tree/append/append_target.py",
        "        elif partition.log.log_end_offset != self._end:\n",
        "        elif partition.log.log_end_offset < self._end:\n",
        "Of two programs that write a new partition both believe that it is theirs.",
        (NEW,),
    ),
    Fault(
        "restore-takes-offsets-that-go-back",
        "storage/log/append.py",
        "        if header.base_offset < end:\n",
        "        if header.base_offset < 0:\n",
        "A log has two records of one offset.",
        (NEW,),
    ),
    Fault(
        "restore-begins-at-0",
        "storage/log/append.py",
        "    is_first = log.is_new\n",
        "    is_first = False\n",
        "A log that comes back has lost records that were deleted on purpose.",
        (NEW,),
    ),
    Fault(
        "create-partition-that-fails-stays",
        "storage/directory/data_directory.py",
        "            remove_directory(self.files, log.directory)\n            raise\n        topic",
        "            raise\n        topic",
        "A partition that nobody has made appears at the next start; keyed lines go elsewhere.",
        ("tests/kafkafs/tree/directories/test_directories.py",),
    ),
    Fault(
        "refused-rest-keeps-the-right-to-write",
        "kafkafs/tree/append/lines_handle.py",
        "                self._drop_line()\n                super().release()\n",
        "                self._drop_line()\n                self._count_unfinished()\n",
        "After a last line that was refused at close nobody can write the new partition.",
        (NEW,),
    ),
    Fault(
        "restored-log-start-dies-with-the-daemon",
        "storage/directory/partition.py",
        "            log_start = max(log_start, written)\n",
        "            _ = written\n",
        "After a kill a partition that came back starts at 0, and its files are others.",
        (NEW,),
    ),
    Fault(
        "a-gap-that-was-restored-is-loss",
        "storage/recovery/segment.py",
        "                and not self._is_out_of_reach(following)\n",
        "                and following\n",
        "A kill takes what lies behind a gap that no segment can have out of the log.",
        ("tests/crash/test_restore_crash.py",),
    ),
]
