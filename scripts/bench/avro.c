/* Decodes Avro values to JSON with libavro, for avro.py. Prints the seconds of processor time that
 * one pass over all values took, the shortest of several.
 *
 *   avro SCHEMA VALUES PASSES     VALUES has a number of 4 bytes, then each value behind its size
 *
 * Build: cc -O2 -o avro avro.c -lavro
 */
#include <avro.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char *whole(const char *path, long *size)
{
    FILE *file = fopen(path, "rb");
    char *data;
    if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < 0)
        exit(1);
    rewind(file);
    data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, file) != (size_t) *size)
        exit(1);
    data[*size] = 0;
    fclose(file);
    return data;
}

static uint32_t take(const char **at)
{
    uint32_t number;
    memcpy(&number, *at, 4);
    *at += 4;
    return number;
}

int main(int argc, char **argv)
{
    long size;
    char *text;
    const char *values, *at;
    avro_schema_t schema;
    avro_value_t value;
    double least = 1e9;
    if (argc != 4)
        return 2;
    text = whole(argv[1], &size);
    if (avro_schema_from_json_length(text, size, &schema))
        return 1;
    avro_generic_value_new(avro_generic_class_from_schema(schema), &value);
    values = whole(argv[2], &size);
    for (int pass = atoi(argv[3]); pass > 0; pass--) {
        const clock_t start = clock();
        at = values;
        for (uint32_t left = take(&at); left > 0; left--) {
            const uint32_t length = take(&at);
            avro_reader_t reader = avro_reader_memory(at, length);
            char *json;
            avro_value_reset(&value);
            if (avro_value_read(reader, &value) || avro_value_to_json(&value, 1, &json))
                return 1;
            free(json);
            avro_reader_free(reader);
            at += length;
        }
        const double took = (double) (clock() - start) / CLOCKS_PER_SEC;
        if (took < least)
            least = took;
    }
    printf("%.9f\n", least);
    return 0;
}
