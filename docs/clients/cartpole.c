/* CartPole as a program of its own, which asks Headrace for the actions of several environments at once, in MessagePack.

       headrace up --env remote --env.port 7654
       cc -O2 cartpole.c -lm -o cartpole && ./cartpole ws://127.0.0.1:7654

   C99 and POSIX sockets. For a simulator of your own replace `begin` and `step`, and the two spaces in say_hello. It speaks ws:// only:
   to another machine by a port that ssh forwards. It sends floats as they lie in memory, which must be little-endian. */

#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* ---- the simulator: the physics of Gymnasium's CartPole-v1 */

enum { ENVIRONMENTS = 8, SIZE = 4 };
static float state[ENVIRONMENTS][SIZE], last[ENVIRONMENTS][SIZE]; /* position and speed of the cart, angle and spin of the pole */
static double reward[ENVIRONMENTS];
static int steps[ENVIRONMENTS], terminated[ENVIRONMENTS], truncated[ENVIRONMENTS];

static void begin(int k) {
    for (int i = 0; i < SIZE; i++) state[k][i] = (float)(0.1 * rand() / RAND_MAX - 0.05);
    steps[k] = 0;
}

static void step(int k, int action) {
    double x = state[k][0], speed = state[k][1], angle = state[k][2], spin = state[k][3];
    double force = action == 1 ? 10 : -10, sine = sin(angle), cosine = cos(angle);
    double push = (force + 0.05 * spin * spin * sine) / 1.1;
    double spin_change = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    double speed_change = push - 0.05 * spin_change * cosine / 1.1;
    double next[SIZE] = {x + 0.02 * speed, speed + 0.02 * speed_change, angle + 0.02 * spin, spin + 0.02 * spin_change};
    for (int i = 0; i < SIZE; i++) last[k][i] = state[k][i] = (float)next[i];
    reward[k] = 1;
    steps[k]++;
    terminated[k] = fabs(next[0]) > 2.4 || fabs(next[2]) > 12 * 3.14159265358979 / 180;
    truncated[k] = steps[k] >= 500 && !terminated[k];
    if (terminated[k] || truncated[k]) begin(k);
}

/* ---- MessagePack: what is written is in `out`; what was received is in `in`, with a zero after it */

static unsigned char out[65536], in[65536];
static size_t written, received;

static void put(const void *data, size_t size) { memcpy(out + written, data, size); written += size; }
static void byte(int value) { out[written++] = (unsigned char)value; }
static void map(int entries) { byte(0x80 | entries); }                            /* at most 15 */
static void array(int entries) { byte(0xdc); byte(entries >> 8); byte(entries); } /* at most 65535 */
static void boolean(int value) { byte(value ? 0xc3 : 0xc2); }
static void integer(int value) { byte(0xcd); byte(value >> 8); byte(value); } /* 0 to 65535 */
static void text(const char *value) { byte(0xd9); byte((int)strlen(value)); put(value, strlen(value)); } /* at most 255 */
static void raw(const void *data, size_t size) { byte(0xc5); byte((int)(size >> 8)); byte((int)size); put(data, size); }
static void real(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    byte(0xcb);
    for (int i = 56; i >= 0; i -= 8) byte((int)(bits >> i));
}

/* Whether the answer is a map whose first key is `key`; where its value begins. */
static const unsigned char *value_of(const char *key) {
    size_t size = strlen(key);
    return received > size + 2 && in[1] == (0xa0 | size) && !memcmp(in + 2, key, size) ? in + 2 + size : NULL;
}

/* ---- WebSocket: functions return 0, or -1 where the connection ends */

static int wire = -1;
static int send_all(const void *data, size_t size) { return send(wire, data, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1; }
static int receive_all(void *data, size_t size) { return recv(wire, data, size, MSG_WAITALL) == (ssize_t)size ? 0 : -1; }

/* `kind`: 2 for binary data, 10 for a pong. */
static int send_message(int kind, unsigned char *data, size_t size) {
    unsigned char head[8] = {(unsigned char)(0x80 | kind), 0x80 | 126, (unsigned char)(size >> 8), (unsigned char)size};
    size_t most = size < 126 ? 2 : 4; /* the size is in one byte or in two */
    if (size < 126) head[1] = (unsigned char)(0x80 | size);
    for (int i = 0; i < 4; i++) head[most + i] = (unsigned char)rand(); /* the mask that clients must use */
    for (size_t i = 0; i < size; i++) data[i] ^= head[most + i % 4];
    return send_all(head, most + 4) || send_all(data, size) ? -1 : 0;
}

static int receive_message(void) {
    for (;;) {
        unsigned char head[2], longer[2];
        if (receive_all(head, 2)) return -1;
        received = head[1];
        if (received == 126) {
            if (receive_all(longer, 2)) return -1;
            received = (size_t)longer[0] << 8 | longer[1];
        }
        if (head[1] == 127 || received >= sizeof in || receive_all(in, received)) return -1;
        in[received] = 0;
        if ((head[0] & 15) == 9 && send_message(10, in, received)) return -1; /* a ping wants a pong */
        if ((head[0] & 15) == 8) return -1;
        if (head[0] == 0x82) return 0;
    }
}

/* Sends what was written and receives the answer. Ends the program where Headrace wants it to stay away. */
static int ask(void) {
    if (send_message(2, out, written) || receive_message()) return -1;
    const unsigned char *why = value_of("close");
    if (!why) return 0;
    if (in[received - 1] == 0xc3) return -1; /* "again" is true */
    why += why[0] == 0xda ? 3 : why[0] == 0xd9 ? 2 : 1;
    fprintf(stderr, "Headrace ends this: %.*s\n", (int)(in + received - 7 - why), (const char *)why);
    exit(1);
}

static int connect_to(const char *host, const char *port) {
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM};
    struct timeval silence = {60, 0}; /* Headrace sends a ping every 20 s */
    char request[600];
    if (getaddrinfo(host, port, &hints, &found)) return -1;
    wire = socket(found->ai_family, SOCK_STREAM, 0);
    int status = connect(wire, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(wire, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
    snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", host, port);
    if (status || send_all(request, strlen(request)) || receive_all(in, 4)) return -1;
    for (received = 4; memcmp(in + received - 4, "\r\n\r\n", 4); received++) /* the answer's head */
        if (received == sizeof in || receive_all(in + received, 1)) return -1;
    return memcmp(in + 9, "101", 3) ? -1 : 0;
}

/* ---- the loop */

static void say_hello(const char *token) {
    written = 0;
    map(5);
    text("token"), text(token), text("name"), text("cartpole.c"), text("environments"), integer(ENVIRONMENTS);
    text("observation"), map(2), text("kind"), text("box"), text("shape"), array(1), integer(SIZE);
    text("action"), map(2), text("kind"), text("discrete"), text("n"), integer(2);
}

/* The results of the last actions; without `results` the first observations of episodes. */
static void say_outcome(int results) {
    written = 0;
    map(results ? 5 : 1);
    text("observation"), raw(state, sizeof state);
    if (!results) return;
    text("final_observation"), raw(last, sizeof last);
    text("reward"), array(ENVIRONMENTS);
    for (int k = 0; k < ENVIRONMENTS; k++) real(reward[k]);
    text("terminated"), array(ENVIRONMENTS);
    for (int k = 0; k < ENVIRONMENTS; k++) boolean(terminated[k]);
    text("truncated"), array(ENVIRONMENTS);
    for (int k = 0; k < ENVIRONMENTS; k++) boolean(truncated[k]);
}

/* Until the connection ends. */
static void play(void) {
    for (const unsigned char *actions = NULL;;) {
        for (int k = 0; k < ENVIRONMENTS; k++) actions ? step(k, actions[k]) : begin(k);
        say_outcome(actions != NULL);
        if (ask()) return;
        if ((actions = value_of("action"))) actions += actions[0] >> 4 == 9 ? 1 : 3; /* otherwise it is "reset": true */
    }
}

static void read_token(char *token) {
    const char *given = getenv("HEADRACE_TOKEN"), *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char path[1000];
    if (given && *given) { snprintf(token, 256, "%s", given); return; }
    snprintf(path, sizeof path, "%s%s/headrace/token", folder && *folder ? folder : home, folder && *folder ? "" : "/.config");
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%255s", token) != 1) fprintf(stderr, "no token in %s\n", path), exit(1);
    fclose(file);
}

int main(int count, char **arguments) {
    char host[256] = "127.0.0.1", port[16] = "7654", token[256];
    if (count > 1 && sscanf(arguments[1], "ws://%255[^:]:%15[0-9]", host, port) != 2)
        return fprintf(stderr, "usage: %s ws://HOST:PORT\n", arguments[0]), 2;
    read_token(token);
    srand((unsigned)time(NULL) ^ (unsigned)getpid() << 16);
    for (double pause = 0.5;; pause = pause < 5 ? 2 * pause : 10) { /* seconds between two attempts to connect */
        say_hello(token);
        if (!connect_to(host, port) && !ask()) {
            printf("connected to ws://%s:%s\n", host, port), fflush(stdout);
            pause = 0.5;
            play();
        }
        if (wire >= 0) close(wire);
        printf("ws://%s:%s: the connection ended; again in %g s\n", host, port, pause), fflush(stdout);
        nanosleep(&(struct timespec){(time_t)pause, (long)(1e9 * (pause - floor(pause)))}, NULL);
    }
}
