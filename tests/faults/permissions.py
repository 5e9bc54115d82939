"""Who may not gets at something, or changes it; and files of whom nobody should trust."""

from __future__ import annotations

from tests.faults.fault import Fault

BENEATH = "tests/storage/test_beneath.py"
FILES = "tests/storage/test_files.py"
BAD_FILES = "tests/storage/recovery/test_bad_files.py"
DIRECTORIES = "tests/kafkafs/tree/directories/test_directories.py"
MOUNT_DIRECTORIES = "tests/mount/contract/test_directories.py"
APPEND_HANDLE = "tests/kafkafs/tree/append/test_append_handle.py"
HANDLES = "tests/kafkafs/tree/test_handles.py"
VIEW_FILE = "tests/kafkafs/tree/files/test_view_file.py"
DETACH = "tests/storage/directory/test_detach.py"
HANDOVER = "tests/storage/handover/test_handover.py"
HANDOVER_CRASH = "tests/crash/test_handover_crash.py"
MANAGER = "tests/storage/directory/test_manager.py"
DATA_DIRECTORY = "tests/storage/directory/test_data_directory.py"

FAULTS = [
    # -- hostile files -------------------------------------------------------------------------
    Fault(
        "files-links-followed-by-openat2",
        "storage/beneath.py",
        "_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH",
        "_RESOLVE = _NO_MAGICLINKS | _BENEATH",
        "A link in the data directory lets any user read what root can.",
        (BENEATH,),
    ),
    Fault(
        "files-links-followed-by-component",
        "storage/beneath.py",
        "        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=directory)",
        "        return os.open(name, flags, mode, dir_fd=directory)",
        "The same on kernels without openat2.",
        (BENEATH,),
    ),
    Fault(
        "files-dots-lead-out",
        "storage/beneath.py",
        '    if ".." in (*parents, name):',
        '    if ".." in parents:',
        "A name leads out of the data directory.",
        (BENEATH,),
    ),
    Fault(
        "files-other-kinds-opened",
        "storage/files.py",
        "        if not stat.S_ISREG(found):\n",
        "        if stat.S_ISDIR(found):\n",
        "A pipe in the place of a snapshot is read.",
        (BENEATH,),
    ),
    Fault(
        "files-stat-follows-links",
        "storage/files.py",
        "            return os.stat(relative, dir_fd=root.fd, follow_symlinks=False)",
        "            return os.stat(relative, dir_fd=root.fd)",
        "What a link leads to counts as a file of the partition.",
        (BENEATH,),
    ),
    Fault(
        "files-chown-follows-links",
        "storage/files.py",
        "            os.chown(parent.name, uid, gid, dir_fd=parent.fd, follow_symlinks=False)",
        "            os.chown(parent.name, uid, gid, dir_fd=parent.fd)",
        "Handing over gives another file of the machine away.",
        (BENEATH,),
    ),
    Fault(
        "files-utime-follows-links",
        "storage/files.py",
        "            os.utime(parent.name, ns=(ns, ns), dir_fd=parent.fd, follow_symlinks=False)",
        "            os.utime(parent.name, ns=(ns, ns), dir_fd=parent.fd)",
        "The times of another file of the machine are changed.",
        (BENEATH,),
    ),
    Fault(
        "files-temporary-ones-not-exclusive",
        "storage/files.py",
        "        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)",
        "        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT)",
        "What somebody has put there in advance is written to.",
        (BENEATH,),
        unseen="The name has 64 random bits, and no link is followed: nobody can have it there.",
    ),
    Fault(
        "files-temporary-names-can-be-guessed",
        "storage/files.py",
        '        temporary = os.path.join(directory, f"{secrets.token_hex(8)}-{name}.tmp")',
        "        temporary = os.path.join(directory, f\"{'0' * 16}-{name}.tmp\")\n"
        "        _ = secrets",
        "Somebody keeps every checkpoint from being written.",
        (BENEATH, FILES),
    ),
    Fault(
        "files-removal-of-a-deleted-partition-through-a-link",
        "storage/directory/deleted.py",
        "    if stat.S_ISLNK(files.file_stat(directory).st_mode):\n",
        "    if files.file_stat(directory).st_mode < 0:\n",
        "A link that is called like a deleted partition stays for ever, with a line each time.",
        (MANAGER, DATA_DIRECTORY, BAD_FILES),
    ),
    Fault(
        "files-larger-than-any-are-read-whole",
        "storage/files.py",
        "            if size > LARGEST_WHOLE:",
        "            if size < 0:",
        "A sparse checkpoint of terabytes takes all memory.",
        (BENEATH, FILES, BAD_FILES),
    ),
    Fault(
        "files-numbers-of-any-length",
        "storage/state/checkpoint_file.py",
        "    is_one = _INTEGER.fullmatch(field) is not None and len(digits) <= _DIGITS",
        "    is_one = _INTEGER.fullmatch(field) is not None",
        "A checkpoint number of 5,000 digits refuses the mount.",
        (BAD_FILES, "tests/storage/state/test_checkpoint_file.py"),
    ),
    Fault(
        "segment-created-over-what-is-there",
        "storage/segment/segment_files.py",
        "os.O_RDWR | os.O_CREAT | os.O_EXCL)",
        "os.O_RDWR | os.O_CREAT)",
        "A new segment goes on in a file that somebody has made meanwhile.",
        ("tests/storage/log/test_log.py",),
    ),
    Fault(
        "links-as-partitions-are-loaded",
        "storage/directory/loader.py",
        "            if parsed is not None:\n                # Also a link",
        '            if parsed is not None and kind == "directory":\n                # Also a link',
        "A partition whose directory is a link is missing, instead of a fault by name.",
        (DATA_DIRECTORY, BAD_FILES),
    ),
    Fault(
        "directories-of-others-are-swept",
        "storage/directory/loader.py",
        '            if aside is not None and aside.kind == "delete":\n',
        "            if aside is not None:\n",
        "-stray and -future directories are emptied.",
        (DATA_DIRECTORY, MANAGER),
    ),
    # -- locks ---------------------------------------------------------------------------------
    Fault(
        "lock-taken-twice-by-one-process",
        "storage/files.py",
        "            with contextlib.suppress(FileNotFoundError):\n"
        "                self._refuse_own_lock(path)\n",
        "            _ = self._refuse_own_lock\n",
        "Two managers of one process write one directory.",
        (FILES,),
    ),
    Fault(
        "lock-dropped-by-who-asks",
        "storage/files.py",
        "                if (status.st_dev, status.st_ino) in _locked_here:\n"
        "                    return os.getpid()",
        "                if status.st_size < 0:\n                    return os.getpid()",
        "Asking who holds the lock gives it up.",
        (FILES,),
    ),
    Fault(
        "lock-of-a-file-that-was-removed",
        "storage/files.py",
        "            if now is not None and (now.st_dev, now.st_ino) =="
        " (status.st_dev, status.st_ino):",
        "            if now is None or now.st_ino >= 0:",
        "Two processes hold the lock, of two files.",
        (FILES,),
    ),
    Fault(
        "lock-stays-when-opening-fails",
        "storage/directory/manager.py",
        "                files.close_root()\n            if lock_fd >= 0:\n"
        "                files.unlock(lock_fd)\n            raise\n",
        "                files.close_root()\n            raise\n",
        "A directory that could not be opened cannot be opened by that process again.",
        (BAD_FILES,),
    ),
    Fault(
        "settings-changed-without-the-lock",
        "storage/directory/manager.py",
        "        with LogManager.alone(path) as files:\n            check_topic",
        "        with contextlib.nullcontext(Files(path)) as files:\n            check_topic",
        "kafkafs config beside a daemon: one of the two settings is lost.",
        (MANAGER, "tests/kafkafs/cli/test_config.py"),
    ),
    # -- names and modes -----------------------------------------------------------------------
    Fault(
        "mkdir-in-a-brokers-directory",
        "storage/directory/manager.py",
        "        if self.settings.is_brokers:\n            raise PolicyViolation",
        "        if False:\n            raise PolicyViolation",
        "The broker deletes the topic at its next start.",
        (DETACH,),
    ),
    Fault(
        "touch-in-a-brokers-directory",
        "storage/directory/manager.py",
        "        self.check_may_create()\n        log = self._create_log(topic, partition)",
        "        log = self._create_log(topic, partition)",
        "The broker deletes the partition at its next start.",
        (DETACH,),
    ),
    Fault(
        "mkdir-that-fails-leaves-its-owner",
        "storage/directory/manager.py",
        "                remove_directory(self.files, log.directory)\n"
        "            self.settings.forget(name)\n",
        "                remove_directory(self.files, log.directory)\n",
        "A topic that is made later belongs to who was refused.",
        (MANAGER, DIRECTORIES, "tests/storage/settings/test_settings.py"),
        unseen="A topic that is made begins with settings of its own (Settings.begin).",
    ),
    Fault(
        "mkdir-takes-another-mode",
        "kafkafs/tree/directories/root.py",
        "        owner = (caller.uid, caller.gid, mode & 0o7777)\n        try:",
        "        owner = (caller.uid, caller.gid, 0o755)\n        try:",
        "mkdir -m 700 makes what all may read.",
        (DIRECTORIES,),
    ),
    Fault(
        "touch-takes-another-mode",
        "kafkafs/tree/directories/topic.py",
        "        owner = (caller.uid, caller.gid, mode & 0o7777)\n        if owner",
        "        owner = (caller.uid, caller.gid, 0o644)\n        if owner",
        "A partition made under umask 077 can be read by all.",
        (DIRECTORIES, MOUNT_DIRECTORIES),
    ),
    Fault(
        "rmdir-though-it-is-switched-off",
        "kafkafs/tree/directories/root.py",
        "        if not manager.settings.broker.delete_topic_enable:",
        "        if manager.settings.broker.delete_topic_enable is None:",
        "delete.topic.enable=false does not keep a topic.",
        (DIRECTORIES,),
    ),
    Fault(
        "modes-that-are-not-known-are-everybodys",
        "kafkafs/tree/permissions.py",
        "            return mode & 0o700, uid, gid",
        "            return mode, uid, gid",
        "With a bad file of owners everybody reads everything.",
        (DIRECTORIES,),
    ),
    Fault(
        "umask-not-taken-off",
        "kafkafs/tree/permissions.py",
        "            mode & ~self._umask,",
        "            mode | self._umask,",
        "-o umask=077 shows what it should hide.",
        (DIRECTORIES,),
    ),
    Fault(
        "partitions-of-a-topic-can-be-executed",
        "kafkafs/tree/permissions.py",
        "        return file_mode(mode & (0o666 if owner is None else 0o7777)), uid, gid",
        "        return file_mode(mode & 0o7777), uid, gid",
        "A partition's file has the directory's x bits.",
        (DIRECTORIES,),
    ),
    Fault(
        "raw-files-can-be-written",
        "kafkafs/tree/files/raw_file.py",
        "            file_mode(mode & 0o444),",
        "            file_mode(mode & 0o666),",
        "ls says that segment files can be written.",
        ("tests/kafkafs/tree/files/test_raw_file.py",),
    ),
    Fault(
        "chmod-on-a-read-only-mount",
        "kafkafs/tree/permissions.py",
        "        if self._manager.read_only:\n"
        "            raise OSError(errno.EROFS, os.strerror(errno.EROFS))\n"
        "        mode, uid, gid = now",
        "        mode, uid, gid = now",
        "A read-only mount writes into a broker's directory.",
        (DIRECTORIES,),
    ),
    Fault(
        "default-permissions-left-out",
        "kafkafs/fuse/daemon.py",
        '        options = {"default_permissions", f"fsname',
        '        options = {f"fsname',
        "No mode is obeyed.",
        (MOUNT_DIRECTORIES,),
    ),
    Fault(
        "written-without-o-append",
        "kafkafs/tree/append/append_handle.py",
        "            if not self._flags & os.O_APPEND:",
        "            if self._flags < 0:",
        "A plain write into the middle of a partition appends.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "written-while-stopping",
        "kafkafs/tree/append/append_handle.py",
        "            self._check_stopping()\n            if not self._flags",
        "            if not self._flags",
        "A line is acknowledged while the logs are being closed.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "synced-writes-are-not",
        "kafkafs/tree/append/append_handle.py",
        "_SYNC = os.O_SYNC | os.O_DSYNC",
        "_SYNC = os.O_SYNC & ~os.O_DSYNC",
        "dd oflag=dsync returns before anything is on the disk.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "refused-rest-goes-on",
        "kafkafs/tree/append/lines_handle.py",
        "        self._discarding = data[-1] != _NEWLINE\n",
        "        self._discarding = not data\n",
        "The remainder of a line that was too large becomes a record.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "partition-can-be-unlinked-quietly",
        "kafkafs/fuse/operations.py",
        "            self._inodes.directory(parent_inode).unlink(os.fsdecode(name))",
        "            self._inodes.directory(parent_inode)",
        "rm says that a partition is gone, and it is there.",
        (MOUNT_DIRECTORIES,),
    ),
    # -- detach, handover ----------------------------------------------------------------------
    Fault(
        "detach-names-before-the-settings",
        "storage/directory/detach.py",
        "        broker_settings.write(files, data_dir, theirs, found)\n",
        "        _ = theirs, found, broker_settings.write\n",
        "What the broker had set is gone: its topics are deleted from by other rules.",
        (DETACH,),
    ),
    Fault(
        "detach-not-durable",
        "storage/directory/detach.py",
        "            files.rename(os.path.join(data_dir, name), _aside(data_dir, name))\n"
        "    files.sync_directory(data_dir)\n",
        "            files.rename(os.path.join(data_dir, name), _aside(data_dir, name))\n",
        "After a power cut the broker's names are back, and what was made since is stray.",
        (DETACH, "tests/storage/directory/test_taking_over.py"),
    ),
    Fault(
        "detach-taken-back-over-new-topics",
        "storage/directory/detach.py",
        "        if made:\n            raise PolicyViolation(",
        "        if False:\n            raise PolicyViolation(",
        "The broker deletes what was made since.",
        (DETACH,),
    ),
    Fault(
        "handover-without-a-plan-on-the-disk",
        "storage/handover/handover.py",
        "            self._write_offsets(self.plan_path, plan)\n",
        "            _ = self.plan_path\n",
        "Killed within, half of a topic stays at the broker.",
        (HANDOVER_CRASH,),
    ),
    Fault(
        "handover-the-broker-may-start-before-it-is-done",
        "storage/handover/handover.py",
        "            self._change(paths.LOG_STARTS, starts)\n            self._let_start()\n",
        "            self._let_start()\n            self._change(paths.LOG_STARTS, starts)\n",
        "A broker that starts then brings deleted records back.",
        (HANDOVER_CRASH,),
    ),
    Fault(
        "handover-log-start-not-handed-over",
        "storage/handover/handover.py",
        "            self._change(paths.LOG_STARTS, starts)\n",
        "            _ = starts\n",
        "Deleted records come back.",
        (HANDOVER,),
    ),
    Fault(
        "handover-beside-a-running-daemon",
        "storage/handover/handover.py",
        "        with self._locked(self.data):\n",
        "        with contextlib.nullcontext():\n",
        "What is appended meanwhile is lost.",
        (HANDOVER,),
    ),
    Fault(
        "handover-of-what-was-not-closed",
        "storage/handover/handover.py",
        "            if not checkpoint_file.has_marker(self.files, self.data):\n"
        "                return False\n",
        "            _ = checkpoint_file.has_marker\n",
        "A torn end is handed over.",
        (HANDOVER,),
    ),
    Fault(
        "handover-over-records-of-the-broker",
        "storage/handover/handover.py",
        '        refuse(f"{name} is not empty at the broker: create the topic anew")\n',
        "        _ = refuse\n",
        "Records of the broker are deleted.",
        (HANDOVER,),
    ),
    Fault(
        "handover-logs-not-synced",
        "storage/handover/handed_segment.py",
        "            files.fsync(fd)\n        finally:\n            files.close(fd)\n"
        "        # Retention",
        "            pass\n        finally:\n            files.close(fd)\n        # Retention",
        "After a power cut the broker trusts a log that is not there.",
        (HANDOVER_CRASH, HANDOVER),
    ),
]
