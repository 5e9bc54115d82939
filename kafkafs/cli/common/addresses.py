"""How commands name logs: the grammar of all commands.

    DATA|MOUNT [TOPIC[:PARTITION] ...]     a data directory, or a mount of it, and logs in it
    MOUNT/TOPIC[/PARTITION] ...            paths below a mount

Without a topic, the words name all logs. A command takes logs by `logs_argument`, or by `resolve`
if other words follow, and gets an `Address`. The command works on `data_dir`. Changes to a mounted
directory go through `mount_to_change`.

A path that is no data directory is refused before the command opens it. If the right command is
known, the message has it. This check touches no mount, since the daemon may not answer.
`mount_to_change`, `mount_to_read` and `check_paths` check that it answers (`serving`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from kafkafs.cli.common.clusters import ClusterAddress, cluster_address, is_cluster
from kafkafs.cli.common.ending import did_you_mean, fail, note_typed, warn
from kafkafs.cli.common.mounts import mount_around, mount_that_writes
from kafkafs.cli.common.words import LOG_WORDS, Logs, Topic, words_argument

if TYPE_CHECKING:
    from kafkafs.cli.common.output import Output
    from kafkafs.mount_table import Mounted
    from storage.log.log import Log
    from storage.manager import LogManager
    from storage.settings.settings import Settings
    from storage.state.tiered import TieredTopics

_NUMBER = re.compile(r"[0-9]{1,19}")

Place = tuple[str, int | None]
"""A topic and one of its partitions; None: all of them."""


class Address(NamedTuple):
    """The logs that a command line names, resolved."""

    data_dir: str
    """The data directory: absolute, without symbolic links."""
    places: tuple[Place, ...] = ()
    """The logs, in the order in which they were named; none: all."""
    mount: str | None = None
    """The mount that was given, else the mount that writes the directory; None: there is none, or
    this process cannot see it."""
    read_only: bool = False
    """Whether `mount` is read-only."""

    def words(self) -> list[str]:
        """Return the words to type for the same logs in the data directory."""
        places = (name if number is None else f"{name}:{number}" for name, number in self.places)
        return [self.data_dir, *places]

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether the address includes a partition."""
        return not self.places or any(
            name == topic and number in (None, partition) for name, number in self.places
        )

    def topic(self) -> str:
        """Return the one topic that is named. Errors: UsageError."""
        if len(self.places) != 1 or self.places[0][1] is not None:
            raise click.UsageError("give one topic: DATA TOPIC, or MOUNT/TOPIC")
        return self.places[0][0]

    def partition(self) -> tuple[str, int]:
        """Return the one partition that is named. Errors: UsageError."""
        topic, partition = self.places[0] if len(self.places) == 1 else ("", None)
        if partition is None:
            raise click.UsageError(
                "give one partition: DATA TOPIC:PARTITION, or MOUNT/TOPIC/PARTITION"
            )
        return topic, partition


_F = TypeVar("_F", bound=Callable[..., Any])
Needs = Literal["partitions", "files", "nothing"]
#: The grammar, in the usage line of a command.
LOGS = "DATA|MOUNT [TOPIC[:PARTITION]]..."
#: Stands for MOUNT in it, if a command accepts the address of a cluster, too.
CLUSTER = "MOUNT|kafka://HOST:PORT"
_ALLOW_EMPTY = "kafkafs.allow_empty"
_FIRST_WORDS = "kafkafs.first_words"


#: The option `--allow-empty`, for `checked_directory`; the command gets no parameter for it.
allow_empty_option = click.option(
    "--allow-empty",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_ALLOW_EMPTY: value}),
    help="Accept a directory without partitions.",
)


def checked_directory(
    text: str,
    *,
    needs: Needs = "partitions",
    may_be_partition: bool = False,
    topic: str | None = None,
) -> str:
    """Return a data directory as an absolute path without symbolic links.

    `needs`: the least contents, unless `--allow-empty` is given: partitions, files of Kafka or
    kafkafs, or nothing. With "nothing", a directory with only other files is still refused.
    `may_be_partition`: accept the directory of one partition. `topic`: the topic that the message
    suggests to create.

    Errors: ClickException.
    """
    from kafkafs.data_directory import Mistake, contents_or_mistake
    from storage.directory.contents import Contents

    def wrong(reason: str, *instead: str | None) -> click.ClickException:
        words = [word for word in instead if word is not None]
        again = f": {this_command(*words)}" if words else ""
        return fail(f"{text}: {reason}{again}")

    _refuse_empty(text)
    path = os.path.realpath(text)
    note_typed(text, path)
    found = contents_or_mistake(text)
    if isinstance(found, Mistake):
        instead = _as_data_and_place(text) if found.is_missing else (found.instead,)
        raise wrong(found.reason, *instead)
    if found is Contents.LOG and not may_be_partition:
        reason = "this is the directory of one partition, not a data directory"
        raise wrong(reason, os.path.dirname(path))
    is_fine = (
        found in (Contents.PARTITIONS, Contents.LOG)
        or (found is Contents.SMALL_FILES and needs != "partitions")
        or (found is Contents.NOTHING and needs == "nothing")
    )
    meta = click.get_current_context().meta
    if not is_fine and not meta.get(_ALLOW_EMPTY):
        hint = ""
        if found is not Contents.OTHERS:
            hint = f". To create a topic in it: {_create_line(text, topic or 'TOPIC')}"
        if _ALLOW_EMPTY in meta:
            hint += "; to use it without partitions: --allow-empty"
        what = "partitions" if found is Contents.SMALL_FILES else "partitions or other Kafka files"
        raise wrong(f"not a Kafka data directory (no {what} found){hint}")
    return path


def this_command(*words: str) -> str:
    """Return the line that runs this command with these words."""
    context = click.get_current_context()
    return f"{context.command_path} {shlex.join([*context.meta.get(_FIRST_WORDS, ()), *words])}"


def note_first_words(*words: str) -> None:
    """Record the words of the command line that `this_command` puts before the words for logs."""
    click.get_current_context().meta[_FIRST_WORDS] = words


def check_no_address(text: str) -> None:
    """Raise ClickException for the address of a broker."""
    from kafkafs.data_directory import find_mistake, is_broker_address

    if is_broker_address(text) and (mistake := find_mistake(text)) is not None:
        raise fail(f"{text}: {mistake.reason}")


def _refuse_empty(text: str) -> None:
    if not text:
        raise fail("empty path (is a shell variable unset?)")


def _as_data_and_place(path: str) -> tuple[str, ...]:
    """Return DATA and TOPIC[:PARTITION] for a path DATA/TOPIC[/PARTITION], which only a mount has.

    The result is empty if there is no such topic.
    """
    from storage import paths
    from storage.files import Files

    above, last = os.path.split(path.rstrip("/"))
    ways = [(above, last, last)]
    if _NUMBER.fullmatch(last) is not None:
        data_dir, topic = os.path.split(above)
        ways.append((data_dir, topic, f"{topic}:{last}"))
    for data_dir, topic, place in ways:
        with suppress(OSError):
            if topic in paths.partitions_in(Files().listing(os.path.abspath(data_dir))):
                return data_dir or ".", place
    return ()


def resolve(
    words: Sequence[str],
    *,
    needs: Needs = "partitions",
    may_be_partition: bool = False,
    only_mount: bool = False,
) -> Address:
    """Return the logs that `words` (at least one) name; see the module.

    `needs` and `may_be_partition`: see `checked_directory`. `only_mount`: the caller does not use
    `data_dir`, which the mount table does not have if it is not ASCII. `check_address` checks that
    the topics exist.

    Errors: ClickException, such as BadParameter.
    """
    first, *others = words
    mounted, path = mount_around(first)
    if mounted is None:
        places = tuple(_place_in(first, word) for word in others)
        topic = places[0][0] if places else None
        data_dir = checked_directory(
            first, needs=needs, may_be_partition=may_be_partition, topic=topic
        )
        return Address(data_dir, places, mount_that_writes(data_dir))
    if not (only_mount or os.path.isabs(mounted.source)):
        raise fail(f"{first}: this is a kafkafs mount; give its data directory instead")
    if not only_mount:
        from kafkafs.cli.common.serving import check_not_moved

        check_not_moved(mounted)
    if path == mounted.path:
        note_typed(first, path)
        places = tuple(_place_in(first, word) for word in others)
    else:
        places = tuple(_place_below(mounted, word) for word in words)
    return Address(mounted.source, places, mounted.path, mounted.read_only)


def _place_below(mounted: Mounted, text: str) -> Place:
    """Return the topic or partition of a path below a mount. Errors: ClickException."""
    around, path = mount_around(text)
    if around is None or around.path != mounted.path:
        raise click.BadParameter(
            f"{text!r} is not in {mounted.path}, the mount of the first argument"
        )
    from storage.paths import ABOUT, GROUPS

    note_typed(text, path)
    topic, *rest = os.path.relpath(path, mounted.path).split(os.sep)
    if topic not in (ABOUT, GROUPS) and not rest:
        return topic, None
    if topic not in (ABOUT, GROUPS) and len(rest) == 1 and _NUMBER.fullmatch(rest[0]) is not None:
        return topic, int(rest[0])
    instead = mounted.path if topic[0] == "." else os.path.join(mounted.path, topic)
    raise fail(f"{text}: not a topic or partition. Try: {this_command(instead)}")


def _place_in(first: str, word: str) -> Place:
    """Parse TOPIC[:PARTITION] after `first`, which is DATA or MOUNT.

    Errors: BadParameter; ClickException for a path.
    """
    if "/" not in word:
        return _place(word)
    below = os.path.relpath(word, first).split(os.sep)
    if mount_around(word)[0] is not None:
        again = [word]
    elif len(below) <= 2 and below[0] not in (os.curdir, os.pardir):
        again = [first, ":".join(below)]
    else:
        return _place(word)
    raise fail(f"{word}: not TOPIC[:PARTITION]. Try: {this_command(*again)}")


def _place(text: str) -> Place:
    """Parse TOPIC or TOPIC:PARTITION. Errors: BadParameter."""
    topic, colon, partition = text.partition(":")
    if not topic:
        raise click.BadParameter(f"{text!r} is not TOPIC[:PARTITION]")
    return topic, number(partition, "partition") if colon else None


def mount_to_change(address: Address) -> str | None:
    """Return the mount through which the logs must be changed; None: open `data_dir`.

    Errors: MirroredDirectory; ClickException if the mount is read-only or its daemon does not
    answer.
    """
    from kafkafs.cli.common.serving import check_served
    from storage.directory.mirror import refuse_mirror

    refuse_mirror(address.data_dir)
    _refuse_read_only(address, through_mount=True)
    if address.mount is not None:
        check_served(address.mount)
    return address.mount


def _refuse_read_only(address: Address, *, through_mount: bool = False) -> None:
    """Raise ClickException for a read-only mount, with a command that works, if there is one.

    `through_mount`: whether the command works through a mount that writes.
    """
    from kafkafs.data_directory import in_use
    from storage import paths
    from storage.errors import LogLocked
    from storage.files import Files

    if not address.read_only:
        return
    what, instead = f"{address.mount}: mounted read-only", address
    writes = mount_that_writes(address.data_dir) if through_mount else None
    if writes is not None:
        instead = address._replace(data_dir=writes)
    else:
        lock = os.path.join(address.data_dir, paths.LOCK)
        holder = Files().locked_by(lock)
        if holder is not None:
            raise fail(f"{what}; {in_use(LogLocked(holder, path=lock))}")
        if not os.access(address.data_dir, os.W_OK):
            raise fail(f"{what}, and you have no permission to write {address.data_dir}")
    raise fail(f"{what}. Try: {this_command(*instead.words())}")


def mount_to_read(address: Address, needed: str = "") -> str | None:
    """Return the mount through which the logs can be read; None: open `data_dir`.

    There is no such mount if the directory is not mounted, if this user may not read the mount, or
    if its daemon does not answer. In the last case, this function prints a line.

    `needed`: the path in the mount that this user must be able to read.
    """
    from kafkafs.cli.common.serving import why_silent
    from kafkafs.mount_table import find

    mounted = None if address.mount is None else find(address.mount)
    if mounted is None:
        return None
    why = why_silent(mounted)
    if why is not None:
        warn(f"reading {address.data_dir} instead of the mount: {why}")
        return None
    is_ours = os.access(os.path.join(mounted.path, needed), os.R_OK if needed else os.X_OK)
    return mounted.path if is_ours else None


def check_paths(paths: Iterable[str]) -> None:
    """Check paths that may lie in mounts, before a command touches them.

    Errors: ClickException if a daemon does not answer, or for an empty path; OSError.
    """
    from kafkafs.cli.common.serving import check_served

    found = []
    for path in paths:
        _refuse_empty(path)
        found.append(mount_around(path)[0])
    for mount in dict.fromkeys(mounted.path for mounted in found if mounted is not None):
        check_served(mount)


def directory_to_open(address: Address) -> str:
    """Return the data directory, for a command that needs exclusive access.

    If a daemon that writes has mounted the directory, opening it raises LogLocked.

    Errors: ClickException for a read-only mount.
    """
    _refuse_read_only(address)
    return address.data_dir


def logs_argument(
    metavar: str = LOGS,
    *,
    needs: Needs = "partitions",
    may_be_partition: bool = False,
    partitions: bool = True,
    clusters: bool = False,
) -> Callable[[_F], _F]:
    """Add the argument for logs, and the option `--allow-empty`. The parameter `logs` is an
    `Address`.

    `metavar`: the part of the grammar that the command accepts, for its usage line. `partitions`:
    accept single partitions, not only whole topics. `clusters`: accept addresses of
    clusters, too, as a `ClusterAddress`.
    """

    def resolved(
        context: click.Context, parameter: click.Parameter, words: Any
    ) -> Address | ClusterAddress:
        if clusters and is_cluster(words[0]):
            return cluster_address(words)
        address = resolve(words, needs=needs, may_be_partition=may_be_partition)
        if not partitions and any(number is not None for _, number in address.places):
            raise click.UsageError(
                "this command takes topics, not single partitions: DATA TOPIC, or MOUNT/TOPIC"
            )
        return address

    if not partitions:
        metavar = metavar.replace("[:PARTITION]", "")
    words = LOG_WORDS if partitions else Logs(Topic())
    if clusters:
        metavar = metavar.replace("MOUNT", CLUSTER)
    argument = words_argument(metavar, words, name="logs", callback=resolved)
    return lambda function: argument(allow_empty_option(function))


def resolve_directory(words: Sequence[str], *, needs: Needs = "partitions") -> Address:
    """Return the directory that `words` name, without topics; see `resolve`."""
    address = resolve(words[:1], needs=needs)
    if address.places or len(words) > 1:
        whole = this_command(address.mount or address.data_dir)
        raise click.UsageError(f"this command takes no topics: {whole}")
    return address


def number(text: str, what: str) -> int:
    """Parse a number ≥ 0. Errors: BadParameter."""
    if _NUMBER.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is not a valid {what}")
    return int(text)


def parsed_places(
    context: click.Context, parameter: click.Parameter, texts: Any
) -> tuple[Place, ...]:
    """Parse several TOPIC or TOPIC:PARTITION, as a click callback."""
    return tuple(map(_place, texts))


def check_address(address: Address, *, or_create: bool = False) -> dict[str, list[int]]:
    """Check that the logs exist, and return all partitions of the data directory by topic.

    A command calls this function before it opens the directory, as opening writes. `or_create`: the
    message about a missing topic has the command that creates it, unless the mount that was given
    is read-only.

    Errors: UnknownTopicOrPartition, OSError.
    """
    from storage import paths
    from storage.errors import UnknownTopicOrPartition
    from storage.files import Files

    there = paths.partitions_in(Files().listing(address.data_dir))
    for topic, partition in address.places:
        if topic not in there:
            partitions = {f"{name}:{number}" for name in there for number in there[name]}
            like = did_you_mean(topic, partitions if "/" in topic else there)
            what = f"there is no topic {topic!r}{like}"
            if or_create and not address.read_only:
                line = _create_line(address.mount or address.data_dir, topic)
                what += f"{'' if like else '.'} To create it: {line}"
            raise UnknownTopicOrPartition(what, path=address.data_dir)
        if partition is not None and partition not in there[topic]:
            what = f"topic {topic!r} has no partition {partition}"
            raise UnknownTopicOrPartition(what, path=address.data_dir)
    return there


def _create_line(place: str, topic: str) -> str:
    return shlex.join(["kafkafs", "create", place, topic])


def partitions_at(address: Address) -> list[tuple[str, int]]:
    """Return the selected partitions, each once. Errors: UnknownTopicOrPartition, OSError."""
    there = check_address(address)
    return [
        (topic, number)
        for topic, numbers in sorted(there.items())
        for number in numbers
        if address.wants(topic, number)
    ]


def settings_at(data_dir: str) -> Settings:
    """Return the settings of a data directory, without opening it."""
    from storage.files import Files
    from storage.settings.settings import Settings

    return Settings(Files(data_dir), data_dir, keeps_faulty=True)


def tiered_topics(address: Address) -> TieredTopics:
    """Return the tiered topics of the data directory, without opening it."""
    from storage.files import Files
    from storage.state.tiered import TieredTopics

    return TieredTopics(Files(address.data_dir), address.data_dir, settings_at(address.data_dir))


def logs_at(manager: LogManager, places: Sequence[Place]) -> list[Log]:
    """Return the logs of these places, each once; without places, return all logs.

    Errors: UnknownTopicOrPartition.
    """
    if not places:
        return list(manager.logs())
    logs: dict[Log, None] = {}
    for topic, partition in places:
        if partition is not None:
            logs[manager.log(topic, partition)] = None
        else:
            logs.update(dict.fromkeys(manager.topic(topic).partitions.values()))
    return list(logs)


def report_faults(manager: LogManager, out: Output, wants: Callable[[str, int], bool]) -> None:
    """Report the wanted partitions that could not be opened. Opening has printed why."""
    for topic, number in manager.topics.faulty:
        if wants(topic, number):
            fault = manager.topics[topic].faults[number]
            out.problem(fault, "FAULT", path=f"{topic}-{number}")
            out.has_failed = True


def report_unknown_settings(manager: LogManager, address: Address, out: Output) -> None:
    """Report the named topics whose settings cannot be read: nothing of them is deleted."""
    for name, topic in manager.topics.items():
        fault = manager.settings.fault_of(name)
        if fault is not None and any(address.wants(name, number) for number in topic.numbers):
            out.report(fault)
