"""What goes on by itself ends for good, an error is swallowed, a figure stays 0."""

from __future__ import annotations

from tests.faults.fault import Fault

TICKS = "tests/kafkafs/fuse/test_housekeeping.py"
DUTIES = "tests/kafkafs/fuse/test_duties.py"
SCHEDULE = "tests/kafkafs/fuse/test_schedule.py"
OPERATIONS = "tests/kafkafs/fuse/test_operations.py"
RESERVE = "tests/storage/directory/test_reserve.py"
RETAIN = "tests/storage/directory/test_retain.py"
MANAGER = "tests/storage/directory/test_manager.py"
LOG = "tests/storage/log/test_log.py"
CLEANER = "tests/storage/compaction/test_cleaner.py"
CLEANABLE = "tests/storage/compaction/test_cleanable.py"
LOG_CLEANER = "tests/storage/compaction/test_log_cleaner.py"
TRANSACTIONS = "tests/storage/compaction/test_transactions.py"
MOUNT_POINT = "tests/kafkafs/fuse/test_mount_point.py"
MOUNTING = "tests/mount/contract/test_mounting.py"
EVENTS = "tests/kafkafs/tree/test_events.py"
MOUNT_MISTAKES = "tests/kafkafs/cli/mounting/test_mount_mistakes.py"

FAULTS = [
    Fault(
        "flush-that-failed-is-never-tried-again",
        "kafkafs/fuse/housekeeping.py",
        "        finally:\n            self._flushing.discard(log)\n",
        "            self._flushing.discard(log)\n",
        "One failed flush ends the flushing of that partition until a remount.",
        (DUTIES, TICKS),
    ),
    Fault(
        "flush-that-failed-has-no-pause",
        "kafkafs/fuse/housekeeping.py",
        "            self._flushes_again.failed(log)\n",
        "            pass\n",
        "A disk that is gone is asked four times a second by each partition.",
        (DUTIES, TICKS),
    ),
    Fault(
        "rescue-never-tried",
        "kafkafs/fuse/housekeeping.py",
        "                if log.flush_error is not None:\n"
        "                    await self._operations.rescue(log)\n"
        "                elif not log.closed:",
        "                if not log.closed:",
        "After a failed fsync a partition takes nothing until a remount.",
        (DUTIES, TICKS),
    ),
    Fault(
        "checkpoint-without-the-lock-of-the-tree",
        "kafkafs/fuse/housekeeping.py",
        "        async with self._operations.structural:\n"
        "            return self._manager.start_checkpoint()\n",
        "        return self._manager.start_checkpoint()\n",
        "A checkpoint beside rmdir walks over topics that go.",
        (TICKS,),
    ),
    Fault(
        "sweep-without-the-lock-of-the-tree",
        "kafkafs/fuse/housekeeping.py",
        "        async with self._operations.structural:\n"
        "            remove = self._manager.sweep(self._manager.monotonic_ms())\n",
        "        remove = self._manager.sweep(self._manager.monotonic_ms())\n",
        "A sweep beside rmdir walks over topics that go.",
        (TICKS,),
    ),
    Fault(
        "duty-that-fails-ends-all",
        "kafkafs/fuse/housekeeping.py",
        "            with self._duties.attempt(duty):\n                await work()\n",
        "            await work()\n",
        "One failed checkpoint ends the daemon.",
        (DUTIES, TICKS),
    ),
    Fault(
        "duty-failures-not-counted",
        "storage/background.py",
        "        self.failures[duty] += 1\n",
        "        self.failures[duty] += 0\n",
        "The metric of failed duties stays 0.",
        (DUTIES,),
    ),
    Fault(
        "duty-says-each-failure",
        "storage/background.py",
        "        if self._failing.get((duty, of)) != how:",
        "        if how:",
        "A full disk fills .kafkafs/log.",
        (DUTIES,),
    ),
    Fault(
        "duty-does-not-say-that-it-goes-on",
        "storage/background.py",
        "        if self._failing.pop((duty, of), None) is not None:",
        "        if (duty, of) in self._failing:",
        "A duty that goes on says so each time, and counts as failing for ever.",
        (DUTIES,),
    ),
    Fault(
        "turn-that-fails-ends-the-schedule",
        "kafkafs/fuse/schedule.py",
        "                self._duties.failed(duty, error, TURN)\n"
        "                pause_s = RETRY_S\n",
        "                self._duties.failed(duty, error, TURN)\n                return\n",
        "After one failed turn there is no retention until a remount.",
        (DUTIES, SCHEDULE),
    ),
    Fault(
        "cleaning-that-fails-takes-all-turns",
        "kafkafs/fuse/schedule.py",
        "            self._cleans_again.failed(log)\n",
        "            pass\n",
        "A log that cannot be cleaned keeps all others from it.",
        (DUTIES, SCHEDULE),
    ),
    Fault(
        "adoption-is-never-settled",
        "kafkafs/fuse/schedule.py",
        "            self._manager.adopter.settle(task, self._mount.clock_ns)\n",
        "            _ = settle, task\n",
        "Rows of a batch whose marker a full disk has refused appear with the next batch only.",
        (DUTIES, SCHEDULE),
    ),
    Fault(
        "sync-that-fails-keeps-its-leases",
        "kafkafs/fuse/operations.py",
        "        try:\n            with self._spinner.elsewhere():\n"
        "                await in_thread(self._syncers, plan.run)\n"
        "        finally:\n            plan.finish()\n",
        "        with self._spinner.elsewhere():\n"
        "            await in_thread(self._syncers, plan.run)\n"
        "        plan.finish()\n",
        "Segments of a flush that failed are never deleted.",
        (OPERATIONS, DUTIES, TICKS),
    ),
    Fault(
        "fsync-answers-before-it-is-done",
        "kafkafs/fuse/operations.py",
        "            await self._sync(self._open_files.get(fh))\n",
        "            self._open_files.get(fh)\n",
        "fsync returns, and nothing is on the disk.",
        (OPERATIONS,),
    ),
    Fault(
        "synchronous-writes-are-not",
        "kafkafs/fuse/operations.py",
        "                if handle.sync_due:\n",
        "                if not handle:\n",
        "flush.messages=1 and O_SYNC flush nothing.",
        (OPERATIONS,),
    ),
    Fault(
        "release-after-another-request",
        "kafkafs/fuse/operations.py",
        "                await self.turns.call(handle.release)\n",
        "                await trio.lowlevel.checkpoint()\n"
        "                await self.turns.call(handle.release)\n",
        "printf n >> p; tail -n1 p misses the line now and then.",
        ("tests/mount/contract/test_appending.py", OPERATIONS),
    ),
    Fault(
        "unclean-end-is-a-clean-one",
        "kafkafs/fuse/daemon.py",
        'was not closed cleanly: {error}")\n            return 3\n',
        'was not closed cleanly: {error}")\n            return 0\n',
        "systemd and scripts take a daemon for well ended that could not write.",
        (
            "tests/kafkafs/cli/mounting/test_mount.py::test_a_directory_that_cannot_be_closed_cleanly",
        ),
    ),
    Fault(
        "open-at-the-end-is-not-released",
        "kafkafs/fuse/daemon.py",
        "self._tree.release_all()",
        "self._tree.release_all",
        "An unfinished line of a settings file is lost when the daemon ends.",
        ("tests/mount/contract/test_mounting.py::test_whatever_is_open_at_the_end",),
    ),
    Fault(
        "one-log-keeps-the-others-from-being-closed",
        "storage/manager.py",
        "        except Exception as error:\n            with contextlib.suppress(Exception):",
        "        except OSError as error:\n            with contextlib.suppress(Exception):",
        "After a bug in one log nothing is closed: no checkpoint, and all else is recovered.",
        ("tests/storage/directory/test_manager.py",),
    ),
    Fault(
        "a-lease-keeps-a-log-from-being-closed",
        "storage/segment/segment.py",
        "self.close_descriptors(own_leases=self._leases)",
        "self.close_descriptors()",
        "The daemon ends with files open that somebody had open in it, and indexes untrimmed.",
        ("tests/storage/directory/test_manager.py",),
    ),
    Fault(
        "mounted-on-the-data-itself",
        "kafkafs/fuse/daemon.py",
        "    if os.path.commonpath([data, path]) in (data, path):",
        "    if data == path:",
        "A daemon that reads its data through itself hangs.",
        ("tests/kafkafs/cli/mounting/test_mount.py::test_what_cannot_be_mounted",),
    ),
    Fault(
        "umount-of-a-stopped-daemon-waits",
        "kafkafs/fuse/mount_point.py",
        "        if pid is not None and is_stopped(pid):\n",
        "        if pid is not None and pid < 0:\n",
        "umount of a mount whose daemon is stopped does not say what to do.",
        (
            "tests/kafkafs/cli/mounting/test_mount.py::test_neither_mount_nor_umount_waits_for_a_stopped_daemon",
        ),
    ),
    Fault(
        "mount-takes-away-one-that-answers",
        "kafkafs/fuse/mount_point.py",
        "    return answer is not Answer.GIVEN\n",
        "    return answer in Answer\n",
        "A second mount ends the first one's.",
        (MOUNT_POINT, MOUNTING),
    ),
    # -- full disks ----------------------------------------------------------------------------
    Fault(
        "reserve-given-up-and-appends-go-on",
        "storage/directory/reserve.py",
        "            if self._part:\n                self.is_whole = False\n",
        "            self.is_whole = self.is_whole or not self._part\n",
        "Appends take what was given up, and nothing can be deleted any more.",
        (RESERVE,),
    ),
    Fault(
        "reserve-not-restored-by-checkpoints",
        "storage/directory/data_directory.py",
        "            self.reserve.restore()\n            if failure is not None:\n"
        "                raise failure\n\n        return write",
        "            if failure is not None:\n                raise failure\n\n"
        "        return write",
        "A reserve that was given up stays so until something is deleted.",
        (RESERVE, MANAGER),
    ),
    Fault(
        "reserve-half-a-part-stays",
        "storage/directory/reserve.py",
        "            with contextlib.suppress(OSError):\n"
        "                self._files.unlink(path)\n            raise\n",
        "            _ = contextlib\n            raise\n",
        "A part that could not be taken whole keeps appends refused.",
        (RESERVE,),
    ),
    Fault(
        "reserve-taken-again-as-a-whole-only",
        "storage/directory/reserve.py",
        "                    if space.f_bavail * space.f_frsize < self._part:\n",
        "                    if space.f_bavail * space.f_frsize < self._part * len(missing):\n",
        "A part that was given up for a moment is lost to who fills the disk next.",
        (RESERVE,),
    ),
    Fault(
        "reserve-used-up-and-no-line-index-goes",
        "storage/directory/reserve.py",
        "self._give_up_one() or self._give_up_lines()",
        "self._give_up_one() or False",
        "Nothing can be deleted once the reserve is used up.",
        (RESERVE,),
    ),
    Fault(
        "line-indexes-take-the-reserve",
        "kafkafs/line_index/segment_lines.py",
        "            files.check_room()\n",
        "            _ = files\n",
        "They take what was given up for deletions.",
        ("tests/kafkafs/test_line_index.py",),
    ),
    Fault(
        "a-restored-partition-begins-at-its-first-record",
        "storage/directory/partition.py",
        "            log_start = max(log_start, _own_log_start(files, path))\n",
        "            _ = _own_log_start\n",
        "Deleted records are shown again in a partition that came from a backup.",
        ("tests/storage/directory/test_restored_partition.py",),
    ),
    Fault(
        "appends-take-the-reserve",
        "storage/log/log.py",
        "        self.files.check_room()\n        config, now_ms",
        "        config, now_ms",
        "Appends take what was given up for deletions.",
        (RESERVE, "tests/mount/test_full_disk.py"),
    ),
    Fault(
        "renames-do-not-take-the-reserve",
        "storage/files.py",
        "        self.with_reserve(lambda: self._rename(source, target))\n",
        "        self._rename(source, target)\n",
        "rmdir of a topic fails on a full disk.",
        (RESERVE,),
    ),
    Fault(
        "small-files-do-not-take-the-reserve",
        "storage/files.py",
        "        self.with_reserve(lambda: self._replace_atomically(path, data, sync=sync))\n",
        "        self._replace_atomically(path, data, sync=sync)\n",
        "delete-records fails on a full disk.",
        (RESERVE, "tests/mount/test_full_disk.py"),
    ),
    Fault(
        "removal-ends-with-the-first-that-fails",
        "storage/directory/deleted.py",
        "                except OSError as error:\n                    failure = failure or error\n"
        "                else:",
        "                except OSError:\n                    raise\n                else:",
        "One file that cannot be removed keeps all others.",
        (MANAGER, DUTIES),
    ),
    Fault(
        "what-could-not-be-removed-is-forgotten",
        "storage/directory/deleted.py",
        "                    self._unremoved.discard((path, is_directory))\n",
        "                    self._unremoved.clear()\n",
        "Deleted files stay on the disk until the next start.",
        (MANAGER, DUTIES),
    ),
    Fault(
        "deleted-file-that-is-read-is-removed",
        "storage/log/log.py",
        "            if not left or due_ms > now_ms or segment.leased or has_others_name:",
        "            if not left or due_ms > now_ms or has_others_name:",
        "A reader's segment goes while it is read.",
        (LOG, MANAGER),
    ),
    Fault(
        "deleted-file-goes-at-once",
        "storage/log/log.py",
        "            if not left or due_ms > now_ms or segment.leased or has_others_name:",
        "            if not left or segment.leased or has_others_name:",
        "Open files are ESTALE at once, instead of after file.delete.delay.ms.",
        (LOG, MANAGER, RETAIN),
    ),
    Fault(
        "snapshot-of-a-cleaned-segment-goes-with-the-old-one",
        "storage/log/log.py",
        "            if segment.base_offset not in bases:\n",
        "            if segment.base_offset >= 0:\n",
        "Producers are forgotten after a cleaning and a kill.",
        ("tests/storage/compaction/test_publishing.py",),
    ),
    # -- retention, cleaning -------------------------------------------------------------------
    Fault(
        "retention-of-settings-that-have-changed",
        "storage/directory/retain.py",
        "        if changed and len(plan_retention(log, now_ms).doomed) < len(advance.segments):\n"
        "            return ()\n",
        "        del changed\n",
        "retention.ms=-1 comes too late by a moment, and everything goes.",
        (RETAIN,),
    ),
    Fault(
        "retention-beside-a-cleaner",
        "storage/directory/retain.py",
        "        if log.closed or log.cleaning or"
        " log.segments[: len(advance.segments)] != advance.segments:",
        "        if log.closed or log.segments[: len(advance.segments)] != advance.segments:",
        "What a cleaner is reading goes, and comes back cleaned.",
        (RETAIN,),
    ),
    Fault(
        "retention-one-log-fails-all-fail",
        "storage/directory/retain.py",
        '            outcome.notes.append(f"{log.topic}-{log.partition}: {error}")\n\n\nclass',
        "            raise\n\n\nclass",
        "One partition whose disk fails keeps all others from their retention.",
        (RETAIN,),
    ),
    Fault(
        "delete-records-of-a-compacted-topic",
        "storage/directory/retain.py",
        '    if log.config.cleanup_policy == ("compact",):',
        "    if log.config.cleanup_policy == ():",
        "Records go whose keys have no later ones.",
        ("tests/storage/log/test_delete_records.py",),
    ),
    Fault(
        "delete-records-beyond-the-end",
        "storage/directory/retain.py",
        "    if not 0 <= wanted <= end:",
        "    if not 0 <= wanted <= end + 1:",
        "The log start lies behind the log end.",
        ("tests/storage/log/test_delete_records.py",),
    ),
    Fault(
        "cleaner-beyond-the-last-stable-offset",
        "storage/compaction/cleanable.py",
        "    bounds = [last_stable, segments[-1].base_offset]",
        "    bounds = [segments[-1].base_offset]",
        "Records of open transactions are cleaned away.",
        (CLEANABLE,),
    ),
    Fault(
        "cleaner-min-lag-off-by-one-segment",
        "storage/compaction/cleanable.py",
        "            if each.largest_timestamp > now_ms - lag_ms\n",
        "            if each.first_timestamp > now_ms - lag_ms\n",
        "Records younger than min.compaction.lag.ms go.",
        (CLEANABLE,),
    ),
    Fault(
        "cleaner-first-dirty-offset-one-too-far",
        "storage/compaction/cleaner.py",
        "    end_offset = offset_map.latest_offset + 1\n",
        "    end_offset = offset_map.latest_offset + 2\n",
        "A record is never looked at by the cleaner.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-aborted-in-the-map",
        "storage/compaction/passes.py",
        "        elif not self._transactions.is_aborted(header):\n            check_record_sizes",
        "        elif not self.finished:\n            check_record_sizes",
        "A record goes for a later one that was aborted.",
        (CLEANER, "tests/storage/compaction/test_cleaner.py"),
    ),
    Fault(
        "cleaner-aborted-are-kept",
        "storage/compaction/passes.py",
        "        elif self.transactions.is_aborted(header):\n            self._keeper.records_read",
        "        elif header.records_count < 0:\n            self._keeper.records_read",
        "Aborted records stay, and are shown when their marker goes.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-no-delete-horizon",
        "storage/compaction/passes.py",
        "            if may_be_dropped and horizon is None:\n",
        "            if may_be_dropped and horizon is not None:\n",
        "Markers stay for ever.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-markers-go-at-once",
        "storage/compaction/passes.py",
        "        elif may_be_dropped and horizon is not None and horizon <= self._rules.now_ms:",
        "        elif may_be_dropped and (horizon is None or horizon <= self._rules.now_ms):",
        "A consumer that reads meanwhile misses the end of a transaction.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-marker-goes-before-its-batches",
        "storage/compaction/transactions.py",
        "                self._committed.remove(batch.producer_id)\n                return False",
        "                self._committed.remove(batch.producer_id)\n                return True",
        "Records of a committed transaction stand there without their marker.",
        (TRANSACTIONS, CLEANER),
    ),
    Fault(
        "cleaner-aborts-what-follows-a-missing-marker",
        "storage/compaction/transactions.py",
        "        if open_one is None or open_one[0].last_offset < batch.base_offset:\n",
        "        if open_one is None or open_one[0].last_offset < 0:\n",
        "The cleaner deletes committed records after an aborted transaction without a marker.",
        (TRANSACTIONS,),
    ),
    Fault(
        "newer-kafka-is-trusted",
        "storage/settings/broker_settings.py",
        "    if metadata.later is not None:\n",
        "    if metadata.later is None and metadata.version < 0:\n",
        "Records are deleted by settings that a newer Kafka may have changed.",
        ("tests/storage/directory/test_taking_over.py",),
    ),
    Fault(
        "handover-of-unknown-settings",
        "storage/handover/handover.py",
        "            elif why_unknown is not None:\n",
        "            elif why_unknown == 1:\n",
        "The broker is told retention.ms=unknown.",
        ("tests/kafkafs/cli/brokers/test_handover.py",),
    ),
    Fault(
        "cleaner-reads-any-size",
        "storage/compaction/passes.py",
        "            if size > most_bytes:\n",
        "            if size > most_bytes + 1:\n",
        "A log is compacted though a record exceeds max.decompressed.message.bytes.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-last-sequence-goes",
        "storage/compaction/passes.py",
        "            return batch.last_offset == producer.last_offset",
        "            return batch.last_offset > producer.last_offset",
        "A producer whose records were all cleaned away is refused after a restart.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-log-end-goes",
        "storage/compaction/passes.py",
        "        if batch.last_offset + 1 == self.high_watermark:\n",
        "        if batch.last_offset == self.high_watermark:\n",
        "A log whose last cleaned batch is gone ends before it did.",
        (CLEANER,),
    ),
    Fault(
        "cleaner-checkpoint-before-the-swap",
        "storage/compaction/log_cleaner.py",
        "            cleaned = cleaner.clean(log, plan, task, now_ms=now_ms,"
        " offset_map=offset_map)\n            self._checkpoint(log, cleaned.end_offset, task)",
        "            self._checkpoint(log, plan.first_uncleanable_offset, task)\n"
        "            cleaned = cleaner.clean(log, plan, task, now_ms=now_ms,"
        " offset_map=offset_map)",
        "What a cleaning that failed has not cleaned is never cleaned.",
        (LOG_CLEANER,),
    ),
    Fault(
        "cleaner-holes-not-written-down",
        "storage/compaction/log_cleaner.py",
        "            self._write_down(log, plan.first_dirty_offset, task)\n"
        "            cleaned = cleaner",
        "            cleaned = cleaner",
        "After a kill the cleaner's holes are taken for lost segments: EIO.",
        ("tests/crash/test_cleaner_crash.py", LOG_CLEANER),
    ),
    Fault(
        "cleaner-stays-at-work-after-a-failure",
        "storage/compaction/log_cleaner.py",
        "            if plan is not None:\n                task.on_log_thread(end)\n",
        "            if plan is not None:\n                task.on_log_thread(lambda: None)\n",
        "A log that was cleaned once is never cleaned or deleted from again.",
        (LOG_CLEANER,),
    ),
    Fault(
        "cleaner-failures-have-no-reason",
        "storage/compaction/log_cleaner.py",
        "            self.uncleanable[log] = str(error)\n            raise",
        "            _ = self.uncleanable\n            raise",
        "Nobody is told that a log cannot be cleaned.",
        (LOG_CLEANER,),
    ),
    Fault(
        "refusals-push-damage-out",
        "kafkafs/tree/events.py",
        "        self._add(self._faults if number in FAULTS else self._refusals, message)\n",
        "        self._add(self._happened, message)\n",
        "A program that is refused a thousand times hides the messages of damage.",
        (EVENTS,),
    ),
    Fault(
        "what-still-comes-goes-with-the-oldest",
        "kafkafs/tree/events.py",
        "            known.stays = True\n",
        "            known.stays = False\n",
        "The count of what is refused again and again begins anew at any moment.",
        (EVENTS,),
    ),
    Fault(
        "create-makes-a-topic-in-a-mount",
        "kafkafs/fuse/daemon.py",
        "    if may_make and mistake is not None and mistake.is_missing:\n",
        "    if may_make and not os.path.lexists(data):\n",
        "A mount that is refused has made a topic.",
        (MOUNT_MISTAKES,),
    ),
]
