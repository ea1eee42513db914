/* Mock OpenAI-style upstream: one thread, epoll, HTTP/1.1 keep-alive.
 *
 *   cc -O2 -o upstream upstream.c
 *   ./upstream --port P [--chunks 64] [--gap-ms 10]
 *
 * POST anything  without "stream":true  one fixed JSON body of about 600 bytes
 *                with "stream":true     `chunks` SSE events, then one write with usage and [DONE];
 *                                       a body that contains "mock-slow" gets gap-ms between the
 *                                       events, "mock-first" one event at once and the rest later
 * GET anything                          a small list of models
 *
 * Each SSE event is written with its own send(), as a real engine does. Listens on 127.0.0.1 only.
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

#define IN_BYTES (1 << 20)   /* largest request */
#define EVENT_FORMS 64       /* the events of a stream repeat after so many */

enum pace { AT_ONCE, PACED, FIRST_THEN_REST };

typedef struct conn {
    int fd, next_event;
    enum pace pace;
    size_t in_len, out_len, out_sent;
    double due_s;               /* when the next event of a paced stream goes out */
    char *in, *out;             /* request bytes so far; answer bytes that the socket did not take */
    struct conn *next;          /* in the list of paced streams */
} conn;

typedef struct { size_t len; char bytes[2048]; } text;

static int chunks = 64, gap_ms = 10, ep;
static conn *paced;
static text json_answer, models_answer, stream_head, event[EVENT_FORMS], last_event;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void json_text(text *to, const char *body) {
    to->len = snprintf(to->bytes, sizeof to->bytes,
                       "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n"
                       "x-request-id: bench\r\n\r\n%s", strlen(body), body);
}

static void chunk_text(text *to, const char *data, const char *after) {
    to->len = snprintf(to->bytes, sizeof to->bytes, "%zx\r\n%s\r\n%s", strlen(data), data, after);
}

#define CHUNK_HEAD "data: {\"id\":\"chatcmpl-bench0000000000000001\",\"object\":" \
    "\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{"
#define USAGE "\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":64,\"total_tokens\":85}"
#define MODEL(name) "{\"id\":\"" name "\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"bench\"}"

static void build_answers(void) {
    json_text(&json_answer,
              "{\"id\":\"chatcmpl-bench0000000000000001\",\"object\":\"chat.completion\",\"created\":1700000000,"
              "\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
              "The quick brown fox jumps over the lazy dog while the gateway counts every token that passes by; "
              "nothing here is random, so that each answer can be compared byte for byte with the one before it. "
              "It is long enough to be like a short answer.\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
              USAGE ",\"system_fingerprint\":\"fp_bench\"}");
    json_text(&models_answer, "{\"object\":\"list\",\"data\":[" MODEL("mock") "," MODEL("mock-slow") ","
              MODEL("mock-first") "]}");
    stream_head.len = snprintf(stream_head.bytes, sizeof stream_head.bytes,
                               "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n");
    for (int i = 0; i < EVENT_FORMS; i++) {
        char data[400];
        snprintf(data, sizeof data,
                 CHUNK_HEAD "%s\"content\":\" tok%02d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                 i ? "" : "\"role\":\"assistant\",", i);
        chunk_text(&event[i], data, "");
    }
    chunk_text(&last_event,
               CHUNK_HEAD "},\"finish_reason\":\"stop\"}]," USAGE "}\n\ndata: [DONE]\n\n", "0\r\n\r\n");
}

static void watch(conn *c, int op, unsigned events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(ep, op, c->fd, &e);
}

static void unlist(conn *c) {
    for (conn **p = &paced; *p; p = &(*p)->next)
        if (*p == c) { *p = c->next; return; }
}

static void drop(conn *c) {
    unlist(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

/* Sends, or keeps for later what the socket does not take. -1: the peer is gone. */
static int put(conn *c, const text *t) {
    const char *from = t->bytes;
    size_t left = t->len;
    if (!c->out_len) {
        ssize_t sent = send(c->fd, from, left, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) return -1;
            sent = 0;
        }
        from += sent;
        left -= sent;
        if (!left) return 0;
        watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    c->out = realloc(c->out, c->out_len + left);
    memcpy(c->out + c->out_len, from, left);
    c->out_len += left;
    return 0;
}

static int put_waiting(conn *c) {
    ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN ? 0 : -1;
    c->out_sent += sent;
    if (c->out_sent == c->out_len) {
        c->out_sent = c->out_len = 0;
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
    }
    return 0;
}

/* Length of the whole request at the start of in, 0 if it is not complete; *body: where its body is. */
static size_t complete(char *in, size_t len, char **body) {
    char *end = memmem(in, len, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(in, "\ncontent-length:");
    char *coding = strcasestr(in, "\ntransfer-encoding:");
    size_t body_len = length ? strtoul(length + 16, 0, 10) : 0;
    *end = '\r';
    *body = end + 4;
    size_t head_len = *body - in;
    if (coding && !length) {
        char *stop = memmem(*body, len - head_len, "0\r\n\r\n", 5);  /* no body here holds these bytes */
        return stop ? (size_t)(stop + 5 - in) : 0;
    }
    return len >= head_len + body_len ? head_len + body_len : 0;
}

static int answer(conn *c, const char *body, size_t body_len) {
    if (memcmp(c->in, "POST", 4)) return put(c, &models_answer);
    if (!memmem(body, body_len, "\"stream\":true", 13) && !memmem(body, body_len, "\"stream\": true", 14))
        return put(c, &json_answer);
    if (put(c, &stream_head)) return -1;
    c->pace = memmem(body, body_len, "mock-first", 10) ? FIRST_THEN_REST
            : memmem(body, body_len, "mock-slow", 9) ? PACED : AT_ONCE;
    if (c->pace != AT_ONCE) {
        c->next_event = 0;
        c->due_s = now_s();
        c->next = paced;
        paced = c;
        return 0;
    }
    for (int i = 0; i < chunks; i++)
        if (put(c, &event[i % EVENT_FORMS])) return -1;
    return put(c, &last_event);
}

/* Sends what is due on one paced stream. 1: it is over, -1: the peer is gone. */
static int advance(conn *c) {
    int has_begun = c->next_event > 0;
    int stop = c->pace == FIRST_THEN_REST && has_begun ? chunks : c->next_event + 1;
    if (stop > chunks) stop = chunks;
    int is_last = c->next_event == chunks || (c->pace == FIRST_THEN_REST && has_begun);
    for (; c->next_event < stop; c->next_event++)
        if (put(c, &event[c->next_event % EVENT_FORMS])) return -1;
    if (is_last) return put(c, &last_event) ? -1 : 1;
    c->due_s += gap_ms / 1000.0;
    return 0;
}

/* Serves the paced streams; how long epoll may sleep before the next event is due, ms. */
static int serve_paced(void) {
    double now = now_s(), first = 1e18;
    for (conn *c = paced, *next; c; c = next) {
        next = c->next;
        if (c->due_s <= now) {
            int over = advance(c);
            if (over < 0) { drop(c); continue; }
            if (over) { unlist(c); continue; }
        }
        if (c->due_s < first) first = c->due_s;
    }
    if (!paced) return -1;
    double wait_ms = (first - now_s()) * 1000;
    return wait_ms <= 0 ? 0 : (int)wait_ms + 1;
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->in = malloc(IN_BYTES);
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void serve(conn *c, unsigned events) {
    if ((events & EPOLLOUT) && c->out_len && put_waiting(c)) { drop(c); return; }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t got = recv(c->fd, c->in + c->in_len, IN_BYTES - c->in_len - 1, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) { drop(c); return; }
    c->in_len += got;
    char *body;
    size_t len;
    while (c->in_len && (len = complete(c->in, c->in_len, &body))) {
        if (answer(c, body, c->in + len - body)) { drop(c); return; }
        memmove(c->in, c->in + len, c->in_len - len);
        c->in_len -= len;
    }
    if (c->in_len >= IN_BYTES - 1) drop(c);
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1024)) { perror("bind"); exit(1); }
    return listener;
}

int main(int argc, char **argv) {
    int port = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port")) port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--chunks")) chunks = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--gap-ms")) gap_ms = atoi(argv[i + 1]);
        else { fprintf(stderr, "unknown %s\n", argv[i]); return 2; }
    }
    if (!port) { fprintf(stderr, "--port is needed\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    build_answers();
    int listener = listen_on(port);
    ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0}, ready[256];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int count = epoll_wait(ep, ready, 256, serve_paced());
        for (int i = 0; i < count; i++) {
            if (ready[i].data.ptr) serve(ready[i].data.ptr, ready[i].events);
            else accept_all(listener);
        }
    }
}
