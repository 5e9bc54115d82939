/* A client that costs little itself, so that what mount.py, tools.py and views.py measure is
 * the file system. Prints its figures as "name value" on one line.
 *
 *   client write FILE COUNT SIZE     COUNT write() calls of one line of SIZE bytes, appended
 *   client append SOURCE FILE SIZE   SOURCE's bytes appended to FILE, SIZE of them a write()
 *   client heads SIZE FILE...        of each file, one after another: open, read SIZE bytes, close
 *   client sequence SIZE FILE        read() calls of SIZE bytes, from FILE's start to its end
 *   client read COUNT FILE...        preads of COUNT different 4 KiB pages of these files, at random
 *   client stat COUNT FILE           COUNT statx() calls that the kernel must not answer itself
 *   client drop FILE...              forget what the page cache holds of these files
 *
 * Build: cc -O2 -o client client.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void report(double seconds, float *latencies, long count)
{
    qsort(latencies, count, sizeof *latencies, compare);
    printf("seconds %.6f per_second %.1f p50_us %.2f p99_us %.2f\n", seconds, count / seconds,
           latencies[count / 2] * 1e6, latencies[count * 99 / 100] * 1e6);
}

static float *room(long count)
{
    float *latencies = count > 0 ? malloc(count * sizeof *latencies) : NULL;
    if (!latencies)
        fail("client: COUNT");
    return latencies;
}

static void write_lines(const char *path, long count, long size)
{
    float *latencies = room(count);
    char *line = malloc(size);
    int fd = open(path, O_WRONLY | O_APPEND);
    double start, last;
    if (fd < 0 || !line)
        fail(path);
    memset(line, 'x', size);
    line[size - 1] = '\n';
    start = last = now();
    for (long n = 0; n < count; n++) {
        double time;
        if (write(fd, line, size) != size)
            fail(path);
        time = now();
        latencies[n] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
    close(fd);
}

/* The source is mapped and touched first, so that the time is that of the write() calls. */
static void append_source(const char *source, const char *path, long size)
{
    struct stat st;
    int from = open(source, O_RDONLY), fd = open(path, O_WRONLY | O_APPEND);
    const char *bytes;
    float *latencies;
    long count = 0;
    double start, last;
    if (from < 0 || fstat(from, &st) < 0 || !st.st_size)
        fail(source);
    if (fd < 0)
        fail(path);
    bytes = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, from, 0);
    if (bytes == MAP_FAILED)
        fail(source);
    latencies = room(st.st_size / size + 1);
    start = last = now();
    for (off_t at = 0; at < st.st_size; at += size) {
        size_t here = st.st_size - at < size ? st.st_size - at : size;
        double time;
        if (write(fd, bytes + at, here) != (ssize_t)here)
            fail(path);
        time = now();
        latencies[count++] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
    close(fd);
}

static void read_heads(long size, char **paths, int count)
{
    float *latencies = room(count);
    char *head = malloc(size);
    double start = now(), last = start;
    if (!head)
        fail("client: SIZE");
    for (int n = 0; n < count; n++) {
        int fd = open(paths[n], O_RDONLY);
        double time;
        if (fd < 0 || read(fd, head, size) != size)
            fail(paths[n]);
        close(fd);
        time = now();
        latencies[n] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
}

static void read_in_sequence(long size, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    char *bytes = malloc(size);
    float *latencies;
    long count = 0;
    double start, last;
    if (fd < 0 || fstat(fd, &st) < 0 || !bytes)
        fail(path);
    latencies = room(st.st_size / size + 1);
    start = last = now();
    for (off_t at = 0; at < st.st_size;) {
        ssize_t got = read(fd, bytes, size);
        double time;
        if (got <= 0 || (got < size && at + got < st.st_size))
            fail(path);
        at += got;
        time = now();
        latencies[count++] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
    close(fd);
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Each page at most once, so that none is in the page cache from an earlier read. */
static void read_randomly(long count, char **paths, int path_count)
{
    static char block[BLOCK];
    float *latencies = room(count);
    int *fds = calloc(path_count, sizeof *fds);
    long *blocks = calloc(path_count, sizeof *blocks), total = 0;
    uint32_t *order;
    double start, last;
    for (int n = 0; n < path_count; n++) {
        struct stat st;
        fds[n] = open(paths[n], O_RDONLY);
        if (fds[n] < 0 || fstat(fds[n], &st) < 0)
            fail(paths[n]);
        posix_fadvise(fds[n], 0, 0, POSIX_FADV_RANDOM);
        blocks[n] = st.st_size / BLOCK;
        total += blocks[n];
    }
    if (count > total)
        count = total;
    order = malloc((total + 1) * sizeof *order);
    if (!order || !count)
        fail("client: nothing to read");
    for (long n = 0; n < total; n++)
        order[n] = n;
    random_state ^= (uint64_t)getpid() << 32;
    for (long n = 0; n < count; n++) {
        long other = n + next_random() % (total - n);
        uint32_t kept = order[n];
        order[n] = order[other];
        order[other] = kept;
    }
    start = last = now();
    for (long n = 0; n < count; n++) {
        long at = order[n];
        int number = 0;
        double time;
        while (at >= blocks[number])
            at -= blocks[number++];
        if (pread(fds[number], block, BLOCK, (off_t)at * BLOCK) != BLOCK)
            fail(paths[number]);
        time = now();
        latencies[n] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
}

static void stat_often(long count, const char *path)
{
    float *latencies = room(count);
    double start = now(), last = start;
    for (long n = 0; n < count; n++) {
        struct statx attributes;
        double time;
        if (statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &attributes) < 0)
            fail(path);
        time = now();
        latencies[n] = time - last;
        last = time;
    }
    report(last - start, latencies, count);
}

static void drop(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        fail(path);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "write") == 0) {
        write_lines(argv[2], atol(argv[3]), atol(argv[4]));
    } else if (argc == 5 && strcmp(argv[1], "append") == 0) {
        append_source(argv[2], argv[3], atol(argv[4]));
    } else if (argc >= 4 && strcmp(argv[1], "heads") == 0) {
        read_heads(atol(argv[2]), argv + 3, argc - 3);
    } else if (argc == 4 && strcmp(argv[1], "sequence") == 0) {
        read_in_sequence(atol(argv[2]), argv[3]);
    } else if (argc >= 4 && strcmp(argv[1], "read") == 0) {
        read_randomly(atol(argv[2]), argv + 3, argc - 3);
    } else if (argc == 4 && strcmp(argv[1], "stat") == 0) {
        stat_often(atol(argv[2]), argv[3]);
    } else if (argc >= 3 && strcmp(argv[1], "drop") == 0) {
        for (int n = 2; n < argc; n++)
            drop(argv[n]);
    } else {
        fprintf(stderr, "usage: client write|append|heads|sequence|read|stat|drop ...\n");
        return 2;
    }
    return 0;
}
