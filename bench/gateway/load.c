/* Closed-loop HTTP/1.1 load client for chat completions: one thread, epoll, keep-alive.
 *
 *   cc -O2 -o load load.c
 *   ./load --port P --requests N --conns C [--model mock] [--stream 1] [--key sk-bench]
 *          [--expect-bytes B] [--expect-events E] [--least-events E] [--warm K] [--max-seconds 60]
 *
 * Sends N requests over C connections, each the next one as soon as its answer is complete, and
 * prints one JSON object. K more are sent first: checked, but left out of the times.
 * An answer is an error when its status is not 200, its body is empty or has not exactly B bytes,
 * it has not exactly E SSE events (or fewer than the least), bytes follow its end, or the connection
 * broke. Every error is counted; the first one is described on standard error. Connects to 127.0.0.1
 * only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROMPT_BYTES 200
#define GAPS_PER_STREAM 300

enum state { HEAD, BODY_LEN, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, BODY_EOF };

typedef struct {
    int fd, status, is_closing, has_answered, newlines;
    enum state state;
    size_t head_len, left, trailer_len, size_len;
    long events, body_bytes;
    double sent_s, read_s;      /* when the request went out; when bytes last came */
    char head[16384], size[64];
} conn;

typedef struct { float *at; long len, cap; } series;   /* microseconds */

static struct {
    int port, conns, stream;
    long requests, warm, expect_bytes, expect_events, least_events;
    double max_s;
    const char *model, *key;
} opt = {.conns = 1, .expect_bytes = -1, .expect_events = -1, .max_s = 60, .model = "mock", .key = "sk-bench"};

static char request[4096];
static size_t request_len;
static int ep;
static long started, done, errors, reconnects, events, timed_events, last_body_bytes;
static int first_bad_status;
static double timed_from_s;
static series latency, first_byte, gap;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static series new_series(long cap) { return (series){malloc(sizeof(float) * cap), 0, cap}; }
static void add(series *s, double us) { if (s->len < s->cap) s->at[s->len++] = us; }
static int is_timed(void) { return done >= opt.warm; }

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}
static void sort(series *s) { qsort(s->at, s->len, sizeof *s->at, by_value); }
static double quantile(const series *s, double q) { return s->len ? s->at[(long)(q * (s->len - 1) + .5)] : 0; }

/* ---- sending ---- */

static void dial(conn *c) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(opt.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&a, sizeof a)) { perror("connect"); exit(2); }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    c->has_answered = 0;
}

static void dial_again(conn *c) {
    close(c->fd);
    dial(c);
    reconnects++;
}

static void send_next(conn *c) {
    if (started >= opt.requests + opt.warm) return;
    started++;
    c->state = HEAD;
    c->head_len = c->size_len = c->trailer_len = 0;
    c->status = c->is_closing = c->newlines = 0;
    c->events = c->body_bytes = 0;
    c->sent_s = c->read_s = now_s();
    for (size_t off = 0; off < request_len;) {
        ssize_t sent = send(c->fd, request + off, request_len - off, MSG_NOSIGNAL);
        if (sent > 0) off += sent;
        else { dial_again(c); off = 0; }
    }
}

/* ---- one answer ---- */

static const char *fault_of(const conn *c, int is_whole) {
    if (c->status != 200) return "status";
    if (!is_whole) return "broken off, or longer than it says";
    if (!c->body_bytes) return "empty body";
    if (opt.expect_bytes >= 0 && c->body_bytes != opt.expect_bytes) return "body length";
    if (!opt.stream) return 0;
    if (opt.expect_events >= 0 && c->events != opt.expect_events) return "number of events";
    return c->events < opt.least_events ? "too few events" : 0;
}

static void finish(conn *c, int is_whole) {
    double t = now_s();
    const char *fault = fault_of(c, is_whole);
    if (fault && !errors++) {
        first_bad_status = c->status;
        fprintf(stderr, "first bad answer: %s (status %d, %ld body bytes, %ld events)\n", fault, c->status,
                c->body_bytes, c->events);
    }
    if (is_timed()) add(&latency, (t - c->sent_s) * 1e6);
    last_body_bytes = c->body_bytes;
    c->has_answered = 1;
    if (++done == opt.warm) { timed_from_s = t; timed_events = 0; }
    if (!is_whole || c->is_closing) dial_again(c);
    send_next(c);
}

static void take_body(conn *c, const char *at, size_t len, double t) {
    if (!c->body_bytes && is_timed()) add(&first_byte, (t - c->sent_s) * 1e6);
    c->body_bytes += len;
    if (!opt.stream) return;
    for (const char *p = at, *end = at + len; p < end; p++) {   /* an event ends with an empty line */
        if (*p == '\r') continue;
        if (*p != '\n') c->newlines = 0;
        else if (++c->newlines == 2) { c->events++; events++; timed_events++; }
    }
}

/* Takes head bytes up to the empty line; how many were used, -1 when the head is too long. */
static ssize_t take_head(conn *c, const char *at, size_t len) {
    size_t room = sizeof c->head - 1 - c->head_len;
    if (len > room) len = room;
    if (!len) return -1;
    memcpy(c->head + c->head_len, at, len);
    size_t from = c->head_len > 3 ? c->head_len - 3 : 0;
    char *end = memmem(c->head + from, c->head_len + len - from, "\r\n\r\n", 4);
    if (!end) { c->head_len += len; return len; }
    *end = 0;
    c->status = atoi(c->head + 9);
    c->is_closing = !!strcasestr(c->head, "\nconnection: close");
    char *length = strcasestr(c->head, "\ncontent-length:");
    if (strcasestr(c->head, "\ntransfer-encoding: chunked")) c->state = CHUNK_SIZE;
    else if (length) { c->state = BODY_LEN; c->left = strtoul(length + 16, 0, 10); }
    else { c->state = BODY_EOF; c->is_closing = 1; }
    return end + 4 - c->head - c->head_len;
}

static void take_size(conn *c, char byte) {
    if (byte != '\n') {
        if (c->size_len < sizeof c->size - 1) c->size[c->size_len++] = byte;
        return;
    }
    c->size[c->size_len] = 0;
    c->size_len = c->trailer_len = 0;
    c->left = strtoul(c->size, 0, 16);
    c->state = c->left ? CHUNK_DATA : TRAILER;
}

static int take_trailer(conn *c, char byte) {
    if (byte == '\n') {
        if (!c->trailer_len) return 1;
        c->trailer_len = 0;
    } else if (byte != '\r') c->trailer_len++;
    return 0;
}

/* Reads received bytes. 1: the answer is complete and nothing follows, -1: it cannot be read. */
static int feed(conn *c, const char *at, size_t len) {
    double t = now_s();
    if (c->body_bytes && opt.stream && is_timed()) add(&gap, (t - c->read_s) * 1e6);
    c->read_s = t;
    for (const char *end = at + len; at < end;) {
        size_t rest = end - at, piece = rest < c->left ? rest : c->left;
        switch (c->state) {
        case HEAD: {
            ssize_t used = take_head(c, at, rest);
            if (used < 0) return -1;
            at += used;
            if (c->state == BODY_LEN && !c->left) return at == end ? 1 : -1;
            break;
        }
        case BODY_LEN:
        case CHUNK_DATA:
            take_body(c, at, piece, t);
            at += piece;
            c->left -= piece;
            if (c->left) break;
            if (c->state == BODY_LEN) return at == end ? 1 : -1;
            c->state = CHUNK_END;
            break;
        case CHUNK_SIZE: take_size(c, *at++); break;
        case CHUNK_END: if (*at++ == '\n') c->state = CHUNK_SIZE; break;
        case TRAILER: if (take_trailer(c, *at++)) return at == end ? 1 : -1; break;
        case BODY_EOF: take_body(c, at, rest, t); at = end; break;
        }
    }
    return 0;
}

/* ---- the run ---- */

static void receive(conn *c) {
    static char buffer[1 << 18];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
        int over = feed(c, buffer, got);
        if (over) finish(c, over > 0);
    } else if (c->state == HEAD && !c->head_len && c->has_answered) {  /* an idle connection was closed */
        dial_again(c);
        started--;
        send_next(c);
    } else {
        c->is_closing = 1;
        finish(c, c->state == BODY_EOF);
    }
}

static void run(conn *cs) {
    struct epoll_event ready[256];
    long all = opt.requests + opt.warm;
    double from_s = timed_from_s = now_s();
    for (int i = 0; i < opt.conns; i++) send_next(&cs[i]);
    while (done < all) {
        int count = epoll_wait(ep, ready, 256, 1000);
        if (now_s() - from_s > opt.max_s) {
            fprintf(stderr, "%ld answers missing after %.0f s\n", all - done, opt.max_s);
            errors += all - done;
            return;
        }
        for (int i = 0; i < count && done < all; i++) receive(ready[i].data.ptr);
    }
}

static void build_request(void) {
    char body[1024];
    int len = sprintf(body, "{\"model\":\"%s\",%s\"max_tokens\":64,\"messages\":[{\"role\":\"user\",\"content\":\"",
                      opt.model, opt.stream ? "\"stream\":true,\"stream_options\":{\"include_usage\":true}," : "");
    for (int i = 0; i < PROMPT_BYTES; i++) body[len++] = "abcdefg "[i & 7];
    len += sprintf(body + len, "\"}]}");
    request_len = snprintf(request, sizeof request,
                           "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                           "authorization: Bearer %s\r\ncontent-type: application/json\r\naccept: */*\r\n"
                           "user-agent: bench-load/1\r\ncontent-length: %d\r\n\r\n%s",
                           opt.port, opt.key, len, body);
}

static void print_result(double seconds) {
    sort(&latency);
    sort(&first_byte);
    sort(&gap);
    printf("{\"answers\":%ld,\"errors\":%ld,\"first_bad_status\":%d,\"reconnects\":%ld,\"events\":%ld,"
           "\"body_bytes\":%ld,\"seconds\":%.4f,\"requests_per_s\":%.1f,\"events_per_s\":%.1f,"
           "\"latency_p50_us\":%.1f,\"latency_p99_us\":%.1f,\"first_byte_p50_us\":%.1f,"
           "\"first_byte_p99_us\":%.1f,\"gap_p99_us\":%.1f}\n",
           done, errors, first_bad_status, reconnects, events, last_body_bytes, seconds,
           latency.len / seconds, timed_events / seconds, quantile(&latency, .5), quantile(&latency, .99),
           quantile(&first_byte, .5), quantile(&first_byte, .99), quantile(&gap, .99));
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port")) opt.port = atoi(value);
        else if (!strcmp(name, "--requests")) opt.requests = atol(value);
        else if (!strcmp(name, "--conns")) opt.conns = atoi(value);
        else if (!strcmp(name, "--model")) opt.model = value;
        else if (!strcmp(name, "--stream")) opt.stream = atoi(value);
        else if (!strcmp(name, "--key")) opt.key = value;
        else if (!strcmp(name, "--expect-bytes")) opt.expect_bytes = atol(value);
        else if (!strcmp(name, "--expect-events")) opt.expect_events = atol(value);
        else if (!strcmp(name, "--least-events")) opt.least_events = atol(value);
        else if (!strcmp(name, "--warm")) opt.warm = atol(value);
        else if (!strcmp(name, "--max-seconds")) opt.max_s = atof(value);
        else { fprintf(stderr, "unknown %s\n", name); exit(2); }
    }
    if (!opt.port || opt.requests < 1 || opt.conns < 1) {
        fprintf(stderr, "--port and --requests are needed\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    build_request();
    latency = new_series(opt.requests + opt.warm);
    first_byte = new_series(opt.requests + opt.warm);
    gap = new_series(opt.stream ? (opt.requests + 1) * GAPS_PER_STREAM : 1);
    ep = epoll_create1(0);
    conn *cs = calloc(opt.conns, sizeof *cs);
    for (int i = 0; i < opt.conns; i++) dial(&cs[i]);
    run(cs);
    print_result(now_s() - timed_from_s);
    return errors != 0;
}
