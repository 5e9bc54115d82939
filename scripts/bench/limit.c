/* The limit: what a file system can do on this machine through libfuse's low level, with next to
 * nothing behind it. The peer of kafkafs in scripts/bench/mount.py.
 *
 *   limit [-dm] [-t SECONDS] MOUNT_POINT FILE...
 *     -d                      direct I/O for read handles as well: each read() is a request
 *     -m                      several threads, each with its own descriptor (clone_fd); else one
 *     -t SECONDS              how long the kernel keeps attributes and names (3600)
 *     +NAME=PATH              a file that is appended to with pwrite, and read with pread
 *     NAME=PATH[,PATH...]     a file served from the memory-mapped bytes of files, back to back
 *
 * Stays in the foreground; SIGTERM unmounts. Like kafkafs: write handles use direct I/O and
 * ignore the offset sent, read handles keep the page cache (without -d), requests are up to 1 MiB.
 * It has no flush, no extended attributes and no directories; nothing is checked.
 *
 * Build: cc -O2 -o limit limit.c $(pkg-config --cflags --libs fuse3)
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 8
#define MAX_PARTS 64

struct part {
    const char *bytes;
    size_t size;
};

struct file {
    const char *name;
    int append_fd; /* -1: served from parts */
    _Atomic off_t size; /* the kernel lets one writer in at a time */
    int parts;
    struct part part[MAX_PARTS];
};

static struct file files[MAX_FILES];
static int file_count;
static double timeout = 3600;
static int direct_reads;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static struct part map_part(const char *path)
{
    struct part part;
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) < 0)
        fail(path);
    part.size = st.st_size;
    part.bytes = mmap(NULL, part.size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (part.bytes == MAP_FAILED)
        fail(path);
    close(fd);
    return part;
}

static void add_file(char *spec)
{
    struct file *file = &files[file_count++];
    char *paths = strchr(spec, '=');
    if (file_count > MAX_FILES || !paths) {
        fprintf(stderr, "limit: too many files, or no '=' in %s\n", spec);
        exit(2);
    }
    *paths++ = 0;
    file->append_fd = -1;
    if (*spec == '+') {
        struct stat st;
        file->name = spec + 1;
        file->append_fd = open(paths, O_RDWR | O_CREAT, 0644);
        if (file->append_fd < 0 || fstat(file->append_fd, &st) < 0)
            fail(paths);
        file->size = st.st_size;
        return;
    }
    file->name = spec;
    for (char *path = strtok(paths, ","); path; path = strtok(NULL, ",")) {
        if (file->parts == MAX_PARTS) {
            fprintf(stderr, "limit: more than %d parts\n", MAX_PARTS);
            exit(2);
        }
        file->part[file->parts] = map_part(path);
        file->size += file->part[file->parts++].size;
    }
}

static struct file *file_of(fuse_ino_t ino)
{
    return ino >= 2 && ino < (fuse_ino_t)file_count + 2 ? &files[ino - 2] : NULL;
}

static void fill(fuse_ino_t ino, struct stat *st)
{
    struct file *file = file_of(ino);
    memset(st, 0, sizeof *st);
    st->st_ino = ino;
    st->st_uid = getuid();
    st->st_gid = getgid();
    st->st_nlink = file ? 1 : 2;
    st->st_mode = file ? S_IFREG | 0644 : S_IFDIR | 0755;
    if (file) {
        st->st_size = file->size;
        st->st_blocks = (file->size + 511) / 512;
    }
}

static void on_init(void *data, struct fuse_conn_info *conn)
{
    (void)data;
    conn->max_write = 1 << 20;
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = {.attr_timeout = timeout, .entry_timeout = timeout};
    (void)parent;
    for (int n = 0; n < file_count; n++) {
        if (strcmp(name, files[n].name) == 0) {
            entry.ino = n + 2;
            fill(entry.ino, &entry.attr);
            fuse_reply_entry(req, &entry);
            return;
        }
    }
    fuse_reply_err(req, ENOENT);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
    struct stat st;
    (void)info;
    fill(ino, &st);
    fuse_reply_attr(req, &st, timeout);
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
    (void)ino;
    if (direct_reads || (info->flags & O_ACCMODE) != O_RDONLY)
        info->direct_io = 1;
    else
        info->keep_cache = 1;
    fuse_reply_open(req, info);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t position,
                    struct fuse_file_info *info)
{
    static _Thread_local char buffer[1 << 20];
    struct iovec pieces[MAX_PARTS];
    struct file *file = file_of(ino);
    int count = 0;
    (void)info;
    if (file->append_fd >= 0) {
        ssize_t got = pread(file->append_fd, buffer, size < sizeof buffer ? size : sizeof buffer,
                            position);
        if (got < 0)
            fuse_reply_err(req, errno);
        else
            fuse_reply_buf(req, buffer, got);
        return;
    }
    for (int n = 0; n < file->parts && size; n++) {
        struct part *part = &file->part[n];
        if (position >= (off_t)part->size) {
            position -= part->size;
            continue;
        }
        size_t here = part->size - position < size ? part->size - position : size;
        pieces[count++] = (struct iovec){(void *)(part->bytes + position), here};
        size -= here;
        position = 0;
    }
    fuse_reply_iov(req, pieces, count);
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size,
                     off_t position, struct fuse_file_info *info)
{
    struct file *file = file_of(ino);
    ssize_t written;
    (void)position;
    (void)info;
    if (file->append_fd < 0) {
        fuse_reply_err(req, EPERM);
        return;
    }
    written = pwrite(file->append_fd, data, size, file->size);
    if (written < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    file->size += written;
    fuse_reply_write(req, written);
}

static void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *info)
{
    (void)ino;
    (void)info;
    fuse_reply_err(req, 0);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = on_lookup,
    .getattr = on_getattr,
    .open = on_open,
    .read = on_read,
    .write = on_write,
    .release = on_release,
};

int main(int argc, char **argv)
{
    char *fuse_argv[] = {argv[0], "-o", "fsname=limit", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, fuse_argv);
    struct fuse_session *session;
    struct fuse_loop_config several = {.clone_fd = 1, .max_idle_threads = 10};
    const char *mount_point;
    int option, result, threaded = 0;

    while ((option = getopt(argc, argv, "dmt:")) != -1) {
        if (option == 'd')
            direct_reads = 1;
        else if (option == 'm')
            threaded = 1;
        else if (option == 't')
            timeout = atof(optarg);
        else
            return 2;
    }
    if (argc - optind < 2) {
        fprintf(stderr, "usage: limit [-dm] [-t SECONDS] MOUNT_POINT FILE...\n");
        return 2;
    }
    mount_point = argv[optind++];
    while (optind < argc)
        add_file(argv[optind++]);

    session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) < 0 ||
        fuse_session_mount(session, mount_point) < 0)
        return 1;
    result = threaded ? fuse_session_loop_mt(session, &several) : fuse_session_loop(session);
    fuse_session_unmount(session);
    fuse_remove_signal_handlers(session);
    fuse_session_destroy(session);
    return result != 0 && result != SIGTERM && result != SIGINT;
}
