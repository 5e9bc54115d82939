#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

/* Computes a CRC-32 (IEEE, reflected) eight bytes at a time. Most payloads are so short that a
   call of zlib would take longer. */
static uint32_t kafkafs_crc_table[8][256];

static void kafkafs_make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0xEDB88320u : crc >> 1;
        kafkafs_crc_table[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = kafkafs_crc_table[table - 1][byte];
            kafkafs_crc_table[table][byte] =
                (before >> 8) ^ kafkafs_crc_table[0][before & 0xFF];
        }
}

static uint32_t kafkafs_crc32(const uint8_t *at, int64_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= kafkafs_crc_table[7 - byte][(word >> 8 * byte) & 0xFF];
    }
    for (; size > 0; at++, size--)
        crc = (crc >> 8) ^ kafkafs_crc_table[0][(crc ^ *at) & 0xFF];
    return ~crc;
}
