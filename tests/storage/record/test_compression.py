"""storage.record.compression: every codec against independent libraries, damage and bombs."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record.compression import (
    CODECS,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    codec_number,
    compress,
    decompress,
    largest_decompressed,
)
from tests.waits import HANG_S

XERIAL = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
HUNDRED = b"a" * 100
HUNDRED_LZ4 = bytes.fromhex("04224d186040820b0000001f6101004b50616161616100000000")
MIXED = random.Random(1).randbytes(70_000) + b"abc" * 30_000
RAW_SNAPPY = bytes(cramjam.snappy.compress_raw(b"one block"))

# Empty, short, compressible, random, and more than a block of each framing.
contents = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([HUNDRED, MIXED, MIXED[:65536], MIXED[60_000:], bytes(200_000)]),
)


def independent(codec: int, data: bytes) -> bytes:
    """Decompress `data` with another library than ours."""
    if codec == GZIP:
        return gzip.decompress(data)
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if codec == LZ4:
        return bytes(lz4.frame.decompress(data))
    out, at = b"", 16
    assert data[:16] == XERIAL
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        block = bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
        assert len(block) <= 32768
        out += block
        at += 4 + size
    return out


@given(data=contents, codec=st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]))
def test_round_trip(data: bytes, codec: int) -> None:
    packed = compress(codec, data)
    assert independent(codec, packed) == data
    assert bytes(decompress(codec, packed)) == data
    assert len(data) <= largest_decompressed(codec, packed)
    if codec == LZ4:
        assert largest_decompressed(codec, packed) < len(data) + (64 << 10)
    view = memoryview(b"x" + packed)[1:]
    assert bytes(decompress(codec, view, limit=len(data))) == data
    assert compress(codec, memoryview(data)) == packed
    if data:
        with pytest.raises(CorruptRecord, match="more than"):
            decompress(codec, packed, limit=len(data) - 1)


@pytest.mark.parametrize(
    ("codec", "levels"), [(GZIP, [-1, 1, 9]), (LZ4, [1, 2, 9, 12, 17]), (ZSTD, [-131072, -1, 22])]
)
def test_levels(codec: int, levels: list[int]) -> None:
    data = b"".join(b"%d and %d\n" % (n, n * n) for n in range(5000))
    packed = [compress(codec, data, level) for level in levels]
    assert [independent(codec, each) for each in packed] == [data] * len(levels)
    assert len(set(map(len, packed))) > 1
    with pytest.raises(AssertionError):
        compress(codec, data, levels[-1] + 1)


def test_default_levels_are_kafkas() -> None:
    assert compress(GZIP, MIXED) == compress(GZIP, MIXED, -1)
    assert compress(LZ4, MIXED) == compress(LZ4, MIXED, 9)
    assert compress(ZSTD, MIXED) == compress(ZSTD, MIXED, 3)


def test_numbers_and_names() -> None:
    assert [codec_number(name) for name in CODECS] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="brotli"):
        codec_number("brotli")
    assert decompress(0, b"abc") == compress(0, b"abc") == b"abc"


@pytest.mark.parametrize(("codec", "magic"), [(5, 2), (7, 1), (ZSTD, 0), (ZSTD, 1)])
def test_codecs_that_a_format_does_not_have(codec: int, magic: int) -> None:
    with pytest.raises(CorruptRecord, match=f"v{magic} has no codec {codec}"):
        decompress(codec, compress(ZSTD, b"x"), magic=magic)


# -- gzip ----------------------------------------------------------------------------------------


def test_gzip_members_follow_one_another() -> None:
    parts = [b"one", b"", MIXED, b"four"]
    assert decompress(GZIP, b"".join(map(gzip.compress, parts))) == b"".join(parts)
    # As java.util.zip.GZIPInputStream does: what follows and is no member is ignored.
    for tail in (b"\0", b"\x1f", b"\x1f\x8b", bytes(100), b"garbage"):
        assert decompress(GZIP, gzip.compress(b"one") + tail) == b"one"
    with pytest.raises(CorruptRecord):
        decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two")[:-1])


def test_gzip_header_with_every_field() -> None:
    plain = gzip.compress(b"hello")
    header = b"\x1f\x8b\x08\x1e" + plain[4:10] + b"\2\0ab" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    assert decompress(GZIP, header + plain[10:]) == b"hello"


# -- snappy --------------------------------------------------------------------------------------


def test_snappy_framing() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"ab"))
    assert compress(SNAPPY, b"ab") == XERIAL + struct.pack(">i", len(block)) + block
    assert compress(SNAPPY, b"") == XERIAL
    chunk = compress(SNAPPY, b"ab")
    assert decompress(SNAPPY, chunk + chunk + chunk[16:]) == b"ababab"  # a header again
    # The versions are not looked at: some writers have them the wrong way round.
    assert decompress(SNAPPY, XERIAL[:8] + b"\1\0\0\0\1\0\0\0" + chunk[16:]) == b"ab"
    for data in (b"", b"ab", MIXED):
        assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data  # librdkafka


# -- lz4 -----------------------------------------------------------------------------------------


def test_lz4_vector() -> None:
    assert compress(LZ4, HUNDRED) == HUNDRED_LZ4
    assert decompress(LZ4, HUNDRED_LZ4) == HUNDRED
    assert decompress(LZ4, HUNDRED_LZ4 + b"what follows is ignored") == HUNDRED
    # Writers of v0 computed the frame header's checksum wrongly; readers of v0 do not check it.
    wrong = HUNDRED_LZ4[:6] + b"\x1a" + HUNDRED_LZ4[7:]
    assert decompress(LZ4, wrong, magic=0) == HUNDRED
    for magic in (1, 2):
        with pytest.raises(CorruptRecord, match="checksum"):
            decompress(LZ4, wrong, magic=magic)


@pytest.mark.parametrize("size", [4, 5, 6, 7])
@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("checksums", [(False, False), (True, False), (False, True)])
def test_lz4_frames_of_others(size: int, store_size: bool, checksums: tuple[bool, bool]) -> None:
    block, content = checksums
    for data in (b"", b"abc", MIXED):
        frame = lz4.frame.compress(
            data,
            block_size=size,
            block_linked=False,
            store_size=store_size,
            block_checksum=block,
            content_checksum=content,
        )
        assert bytes(decompress(LZ4, frame)) == data
    if block:
        damage = bytearray(frame)
        damage[40] ^= 1
        with pytest.raises(CorruptRecord, match=r"checksum|invalid"):
            decompress(LZ4, damage)


def lz4_frame(flags: int, descriptor: int, blocks: bytes) -> bytes:
    """A frame with a right header checksum."""
    import xxhash

    described = bytes([flags, descriptor])
    checksum = xxhash.xxh32(described).intdigest() >> 8 & 0xFF
    return HUNDRED_LZ4[:4] + described + bytes([checksum]) + blocks


BAD_LZ4 = {
    "linked blocks": (lz4.frame.compress(MIXED), "depend"),
    "version": (lz4_frame(0xA0, 0x40, bytes(4)), "flags 0xa0"),
    "reserved flag": (lz4_frame(0x62, 0x40, bytes(4)), "flags 0x62"),
    "dictionary": (lz4_frame(0x61, 0x40, bytes(4)), "flags 0x61"),
    "reserved descriptor": (lz4_frame(0x60, 0x41, bytes(4)), "0x60 0x41"),
    "block size 3": (lz4_frame(0x60, 0x30, bytes(4)), "0x60 0x30"),
    "block too long": (lz4_frame(0x60, 0x40, struct.pack("<I", 65537) + bytes(65545)), "65537"),
    "no end": (HUNDRED_LZ4[:-1], "end"),
    "block cut off": (HUNDRED_LZ4[:14], "truncated"),
    "header cut off": (HUNDRED_LZ4[:6], "magic"),
    "size cut off": (lz4.frame.compress(HUNDRED, block_linked=False)[:10], "truncated"),
}


@pytest.mark.parametrize(("frame", "reason"), BAD_LZ4.values(), ids=BAD_LZ4.keys())
def test_lz4_frames_that_kafka_refuses(frame: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecord, match=reason):
        decompress(LZ4, frame)


# -- zstd ----------------------------------------------------------------------------------------


def zstd_streamed(data: bytes, *, checksum: bool) -> bytes:
    """A frame that does not say how long its content is, as Java writes it."""
    packer = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
    return packer.compress(data) + packer.flush()


@given(parts=st.lists(st.tuples(contents, st.integers(0, 3)), min_size=1, max_size=4))
def test_zstd_frames_of_others(parts: list[tuple[bytes, int]]) -> None:
    frames = b""
    for data, kind in parts:
        if kind == 0:
            frames += struct.pack("<II", 0x184D2A5F, len(data)) + data  # skipped
        elif kind == 1:
            frames += zstandard.compress(data)
        else:
            frames += zstd_streamed(data, checksum=kind == 3)
    whole = b"".join(data for data, kind in parts if kind)
    assert decompress(ZSTD, frames, limit=len(whole)) == whole
    for damage in (frames[:-1], frames + b"x"):
        with pytest.raises(CorruptRecord):
            decompress(ZSTD, damage)


# -- damage and bombs ----------------------------------------------------------------------------

STREAMS = [
    *(
        (codec, compress(codec, data))
        for codec in (1, 2, 3, 4)
        for data in (b"abc", MIXED[60_000:])
    ),
    (SNAPPY, RAW_SNAPPY),
    (LZ4, lz4.frame.compress(MIXED, block_linked=False, block_checksum=True)),
    (ZSTD, zstd_streamed(MIXED[60_000:], checksum=True)),
]


@pytest.mark.parametrize(("codec", "stream"), STREAMS)
def test_truncated(codec: int, stream: bytes) -> None:
    for size in [*range(min(len(stream), 60)), len(stream) // 2, len(stream) - 1]:
        if codec == SNAPPY and size == 16 and stream[:16] == XERIAL:
            assert decompress(SNAPPY, stream[:16]) == b""  # what an empty stream is
            continue
        with pytest.raises(CorruptRecord):
            decompress(codec, stream[:size])


BOMBS = """
import struct, zlib
def bomb(codec, total):
    mib = total >> 20
    if codec == 1:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        return b"".join(packer.compress(bytes(1 << 20)) for _ in range(mib)) + packer.flush()
    if codec == 2:
        # A raw block that says it is so long; a literal, then copies of 64 bytes.
        size, length = total + 1, b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return length + bytes([size]) + b"\\0a" + b"\\xfe\\1\\0" * (total // 64)
    if codec == 3:
        block = b"\\x1f\\0\\1\\0" + b"\\xff" * 256 + b"\\xe7\\x50" + bytes(5)
        packed = struct.pack("<I", len(block)) + block
        return bytes.fromhex("04224d18604082") + packed * (total // 65536) + bytes(4)
    rle = struct.pack("<I", 131072 << 3 | 1 << 1)[:3] + b"a"
    return bytes.fromhex("28b52ffd00") + b"\\x38" + rle * (total >> 17) + b"\\1\\0\\0"
"""


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_bomb_of_the_test(codec: int) -> None:
    """Below the limit it is data like any other: so it is no broken stream that is refused."""
    made: dict[str, object] = {}
    exec(BOMBS, made)
    make = made["bomb"]
    assert callable(make)
    assert len(decompress(codec, make(codec, 4 << 20))) >= 4 << 20


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_bomb_takes_no_memory(codec: int) -> None:
    """With 128 MiB more than it has, a process refuses what would be a gigabyte."""
    program = f"""{BOMBS}
import resource
from storage.errors import CorruptRecord
from storage.record.compression import decompress
data = bomb({codec}, 1 << 30) if {codec} != 1 else bomb(1, 1 << 28)
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
room = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for limit in (1 << 20, 32 << 20):
    try:
        decompress({codec}, data, limit=limit)
    except CorruptRecord as error:
        assert "more than" in str(error), error
    else:
        raise AssertionError(limit)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr


def test_a_snappy_chunk_that_claims_much_takes_no_memory() -> None:
    stream = XERIAL + b"\0\0\0\3\1\0a" + b"\0\0\0\6\x80\x80\x80\x80\x04a"  # of 1 GiB
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord, match="6 bytes cannot decompress to"):
            decompress(SNAPPY, stream, limit=1 << 31)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 << 10


# -- many small pieces ---------------------------------------------------------------------------


class Member:
    """A decompressor of zlib's that counts the bytes that it is given, and those that it copies."""

    looked_at = 0
    make = staticmethod(zlib.decompressobj)

    def __init__(self, wbits: int) -> None:
        self._made = self.make(wbits)

    def decompress(self, data: bytes, most: int) -> bytes:
        found = self._made.decompress(data, most)
        Member.looked_at += len(data) + len(self.unused_data) + len(self._made.unconsumed_tail)
        return found

    @property
    def unused_data(self) -> bytes:
        return self._made.unused_data

    @property
    def unconsumed_tail(self) -> bytes:
        return self._made.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._made.eof


@pytest.mark.parametrize(
    "members",
    [
        [b""] * 3000,
        [b"ab"] * 3000,
        [MIXED] + [b""] * 3000,
        [b"a", *[MIXED[:n] for n in range(0, 3000, 7)], b""],
    ],
    ids=["empty", "short", "behind a long one", "growing"],
)
def test_gzip_members_are_looked_at_a_few_times(
    members: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zlib, "decompressobj", Member)
    stream = b"".join(compress(GZIP, member) for member in members)
    Member.looked_at = 0
    assert decompress(GZIP, stream) == b"".join(members)
    assert Member.looked_at < 8 * len(stream)
    Member.looked_at = 0
    assert decompress(GZIP, stream + b"\x1f\x8b and no member") == b"".join(members)
    with pytest.raises(CorruptRecord):
        decompress(GZIP, stream + stream[:12])
    assert Member.looked_at < 16 * len(stream)


def lz4_of(*blocks: bytes) -> bytes:
    return HUNDRED_LZ4[:7] + b"".join(blocks) + bytes(4)


SMALL_PIECES = {
    "snappy empty": (SNAPPY, XERIAL + b"\0\0\0\1\0" * 20_000, b""),
    "snappy": (SNAPPY, XERIAL + b"\0\0\0\3\1\0a" * 20_000, b"a" * 20_000),
    "snappy headers": (SNAPPY, XERIAL * 5_000 + b"\0\0\0\3\1\0a" * 2, b"aa"),
    "lz4 stored": (LZ4, lz4_of(b"\1\0\0\x80a" * 20_000), b"a" * 20_000),
    "lz4": (LZ4, lz4_of(b"\2\0\0\0\x10a" * 20_000), b"a" * 20_000),
    "zstd empty": (ZSTD, compress(ZSTD, b"") * 20_000, b""),
    "zstd": (ZSTD, compress(ZSTD, b"a") * 20_000, b"a" * 20_000),
    "gzip": (GZIP, compress(GZIP, b"ab") * 5_000, b"ab" * 5_000),
}


@pytest.mark.parametrize(("codec", "stream", "content"), SMALL_PIECES.values(), ids=SMALL_PIECES)
def test_small_pieces_take_the_memory_of_their_content(
    codec: int, stream: bytes, content: bytes
) -> None:
    decompress(codec, compress(codec, b"a"))
    tracemalloc.start()
    try:
        found = decompress(codec, stream, limit=len(content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == content
    # Room for a block that is as large as any of its frame, and twice for what grows; zlib copies
    # once what follows the first member.
    assert peak < len(stream) + 2 * len(content) + (128 << 10)


@pytest.mark.parametrize(
    ("codec", "stream"),
    [SMALL_PIECES[name][:2] for name in ("lz4 stored", "lz4", "zstd empty", "zstd", "snappy")],
)
def test_many_blocks_of_nothing_are_much(codec: int, stream: bytes) -> None:
    """They take as long as large ones, and whoever must answer at once leaves them to a thread."""
    assert largest_decompressed(codec, stream) > 4 * len(stream)


def test_an_lz4_frame_ends_where_kafka_ends_it() -> None:
    """KafkaLZ4BlockInputStream looks at the size without the bit that says how it is stored."""
    assert decompress(LZ4, HUNDRED_LZ4[:-4] + b"\0\0\0\x80" + b"ignored") == HUNDRED
