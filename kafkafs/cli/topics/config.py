"""`kafkafs config`: shows a topic's settings, and changes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    Address,
    allow_empty_option,
    check_address,
    directory_to_open,
    mount_to_change,
)
from kafkafs.cli.common.changes import topic_and_rest
from kafkafs.cli.common.output import Output, objects, output_options
from kafkafs.cli.common.words import DIRECTORY, FILE, Logs, Setting, Topic, words_argument
from kafkafs.printable import lines

_Changes = Mapping[str, str | None]
"""Values by name; None: the default."""


@click.command(
    "config",
    epilog=examples(
        "kafkafs config data",
        "kafkafs config data orders",
        "kafkafs config mnt/orders retention.ms=7d cleanup.policy=compact,delete",
        "kafkafs config data orders retention.ms=  # back to the default",
    ),
)
@words_argument("DATA|MOUNT [TOPIC [NAME=[VALUE]]...]", Logs(Topic(), Setting()))
@allow_empty_option
@click.option(
    "--broker-config",
    type=FILE,
    help=(
        "The server.properties of the broker that wrote DATA. config stores its path in "
        "kafkafs.properties."
    ),
)
@click.option(
    "--metadata-log-dir",
    type=DIRECTORY,
    help=(
        "The directory with the broker's __cluster_metadata-0, if server.properties does not name "
        "this directory."
    ),
)
@output_options("a list of objects with `name`, `value` and `source`")
def command(
    words: Sequence[str], broker_config: str | None, metadata_log_dir: str | None, out: Output
) -> None:
    """Show settings, or change the settings of TOPIC: NAME=VALUE sets a value, NAME= restores the
    default.

    config prints the topic's own settings as NAME=VALUE, and the other settings in force as
    `# NAME=VALUE (source)`. The source says where the value comes from. Without TOPIC, config
    prints the settings in kafkafs.properties, and the defaults. config can show settings while the
    directory is in use.

    config can change settings if the directory is mounted, or is not in use. In a mount, the
    changes take effect at once. config checks all changes together, by Kafka's rules. If one change
    is wrong, config makes none of them. Times can have units (7d, 12h, 30m, 5s). Sizes can have
    units, too (10GiB, 512MiB, 64KiB).

    In a broker's directory, kafkafs reads the topic settings from the broker's metadata log. The
    broker's defaults are in its server.properties: name this file once with --broker-config. If
    kafkafs does not know which records of a topic the broker would keep, it deletes and compacts
    nothing of that topic. mount and .kafkafs/topics report such topics.
    """
    address, changes = _parsed(words)
    named = {"kafkafs.broker.config": broker_config, "kafkafs.metadata.log.dir": metadata_log_dir}
    given = {name: os.path.realpath(place) for name, place in named.items() if place is not None}
    if given and address.places:
        raise click.UsageError(
            "--broker-config and --metadata-log-dir apply to all topics; do not give a topic"
        )
    check_address(address)
    if given:
        _set_places(directory_to_open(address), given)
    elif changes:
        _change(address, changes)
    else:
        _show(address, out)


def _parsed(words: Sequence[str]) -> tuple[Address, _Changes]:
    """Return the directory or its topic, and the changes. Errors: ClickException."""
    address, others = topic_and_rest(words, needs="files")
    changes = dict(map(_change_of, others))
    if changes and not address.places:
        raise click.UsageError("settings belong to a topic: DATA TOPIC NAME=VALUE")
    return address, changes


def _change_of(text: str) -> tuple[str, str | None]:
    """Return a name, and its value or None for the default. Errors: BadParameter."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value or None


def _show(address: Address, out: Output) -> None:
    """Print settings as `.config` does."""
    from kafkafs.tree.control.topic_config import config_text, defaults_text
    from storage.files import Files
    from storage.settings.settings import Settings

    files = Files(address.data_dir)
    files.names(address.data_dir)
    settings = Settings(files, address.data_dir)
    if address.places:
        topic = address.topic()
        text, given = config_text(settings, topic), settings.overrides(topic)
        in_force, source = settings.explain(topic), "topic"
    else:
        text, given = defaults_text(settings), settings.given
        in_force, source = settings.explain_defaults(), "kafkafs.properties"
    if not out.as_json:
        click.echo(lines(text), nl=False)
    rows = [(name, value, source) for name, value in given.items()]
    rows += [row for row in in_force if row[0] not in given]
    out.json(objects(("name", "value", "source"), rows))


def _change(address: Address, changes: _Changes) -> None:
    """Set a topic's settings. Errors: StorageError, OSError; nothing has changed."""
    from kafkafs.cli.common.daemon_jobs import write_line
    from kafkafs.cli.common.refusals import Request
    from storage.directory.lock import change_settings
    from storage.files import Files
    from storage.retention.retention import check_policy
    from storage.settings.settings import Settings

    topic = address.topic()
    mount = mount_to_change(address)
    if mount is None:
        change_settings(address.data_dir, topic, changes)
        return
    # The daemon checks again, but a write returns only an errno.
    Settings(Files(address.data_dir), address.data_dir, check_policy).checked(topic, changes)
    written = (f"{name}={value or ''}" for name, value in changes.items())
    name = os.path.join(topic, ".config")
    with Request(mount, name).failing_as(os.path.join(mount, topic)):
        write_line(os.path.join(mount, name), "\n".join(written))


def _set_places(path: str, given: dict[str, str]) -> None:
    """Store the paths of a broker's settings. Errors: StorageError, OSError."""
    from storage.directory.lock import alone
    from storage.settings import broker_settings
    from storage.settings.settings import set_default

    with alone(path) as files:
        broker_settings.check_places(
            files, path, given.get("kafkafs.broker.config"), given.get("kafkafs.metadata.log.dir")
        )
        for name, place in given.items():
            set_default(files, path, name, place)
