/* A Nintendo Entertainment System for cartridges without a mapper (NROM), without sound: what an agent needs of the console, as
   fast as possible. It draws a picture only where it is asked for one, computes time by whole instructions, and skips the loop in
   which a game waits for the next picture. The processor's timing decides when a game reads its buttons, so instructions have
   their exact numbers of cycles.

   CPU: http://www.6502.org/tutorials/6502opcodes.html; PPU: https://www.nesdev.org/wiki/PPU_rendering, /wiki/PPU_scrolling. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { WIDTH = 256, HEIGHT = 240, DOTS = 341, LINES = 262, VBLANK = 241, LAST = 261, FETCH = 257 };
enum { C = 1, Z = 2, I = 4, D = 8, B = 16, U = 32, V = 64, N = 128 };

typedef struct {
    uint8_t ram[0x800], vram[0x800], oam[256], palette[32];
    int32_t dot;   /* of the frame, where the next instruction begins */
    int32_t event; /* number of the PPU's next event in the frame: two in each line */
    int32_t next;  /* dot of the next event, or of the meeting of sprite 0 and background */
    int32_t hit;   /* dot at which sprite 0 meets the background in this line; -1: nowhere */
    uint32_t cycles;
    uint16_t pc, v, t;
    uint8_t a, x, y, s, p, ctrl, mask, status, oam_address, second, fine_x, buffer, nmi, odd, strobe, shift, buttons, draw;
    uint8_t picture[HEIGHT][WIDTH]; /* colours of the NES palette, 0 to 63 */
} Nes;

typedef struct {
    uint8_t prg[0x8000], chr[0x2000], rows[0x1000][8]; /* the pixels of each row of each tile */
    int32_t vertical; /* mirroring */
} Cartridge;

static Cartridge cartridge;

/* ---- picture ---- */

static uint16_t place(uint16_t address) { /* in vram */
    return cartridge.vertical ? address & 0x7ff : (address >> 1 & 0x400) | (address & 0x3ff);
}

static int colour(int address) { /* in the palette: entries 0 of sprites are those of the background */
    return address & 3 ? address & 31 : address & 15;
}

/* The background's pixel [0, 15] at x of the line that v is at; 0: transparent. */
static int background(const Nes *n, int x) {
    int across = (n->v & 31) * 8 + n->fine_x + x, table = n->v & 0xc00, row = n->v >> 5 & 31;
    if (across >= 256) table ^= 0x400;
    int column = across >> 3 & 31;
    int tile = n->vram[place(table | row << 5 | column)];
    const uint8_t *pattern = cartridge.chr + ((n->ctrl & 16) << 8) + tile * 16 + (n->v >> 12);
    int bit = 7 - (across & 7), pixel = (pattern[0] >> bit & 1) | (pattern[8] >> bit & 1) << 1;
    if (!pixel) return 0;
    int attribute = n->vram[place(table | 0x3c0 | (row >> 2) << 3 | column >> 2)];
    return pixel | (attribute >> ((row & 2) << 1 | (column & 2)) & 3) << 2;
}

/* The row of 8 pixels of sprite i in this line: two planes; returns 0 where the sprite is not in the line. */
static int sprite_row(const Nes *n, int i, int line, uint8_t *low, uint8_t *high) {
    const uint8_t *sprite = n->oam + 4 * i;
    int size = n->ctrl & 32 ? 16 : 8, row = line - sprite[0] - 1;
    if (row < 0 || row >= size) return 0;
    if (sprite[2] & 128) row = size - 1 - row;
    int tile = sprite[1], table = n->ctrl & 8 ? 0x1000 : 0;
    if (size == 16) {
        table = (tile & 1) << 12;
        tile = (tile & 254) + (row >> 3);
        row &= 7;
    }
    *low = cartridge.chr[table + tile * 16 + row];
    *high = cartridge.chr[table + tile * 16 + row + 8];
    return 1;
}

static int sprite_pixel(const uint8_t *sprite, uint8_t low, uint8_t high, int x) {
    int bit = sprite[2] & 64 ? x : 7 - x;
    return (low >> bit & 1) | (high >> bit & 1) << 1;
}

/* The x at which sprite 0 meets the background in this line, or -1. */
static int first_hit(const Nes *n, int line) {
    uint8_t low, high;
    if ((n->mask & 24) != 24 || n->status & 64 || !sprite_row(n, 0, line, &low, &high) || !(low | high)) return -1;
    for (int i = 0; i < 8; i++) {
        int x = n->oam[3] + i;
        if (x < 255 && (x > 7 || (n->mask & 6) == 6) && sprite_pixel(n->oam, low, high, i) && background(n, x)) return x;
    }
    return -1;
}

static void draw_line(Nes *n, int line) {
    uint8_t back[WIDTH + 16], *out = n->picture[line];
    if (n->mask & 8) {
        uint16_t v = n->v;
        const uint8_t (*rows)[8] = cartridge.rows + ((n->ctrl & 16) << 7) + (v >> 12);
        uint8_t *pixel = back;
        for (int tile = 0; tile < 33; tile++, pixel += 8) {
            uint8_t attribute = n->vram[place(0x3c0 | (v & 0xc00) | (v >> 4 & 0x38) | (v >> 2 & 7))];
            uint64_t above = (attribute >> ((v >> 4 & 4) | (v & 2)) & 3) << 2, eight;
            memcpy(&eight, rows[n->vram[place(v & 0xfff)] * 8], 8);
            eight |= ((eight | eight >> 1) & 0x0101010101010101) * above; /* where a pixel is not transparent */
            memcpy(pixel, &eight, 8);
            v = (v & 31) == 31 ? (v & ~31) ^ 0x400 : v + 1;
        }
        if (!(n->mask & 2)) memset(back + n->fine_x, 0, 8);
    } else {
        memset(back, 0, sizeof back);
    }
    const uint8_t *seen = back + n->fine_x;
    for (int x = 0; x < WIDTH; x++) out[x] = n->palette[seen[x]] & 63;
    if (!(n->mask & 16)) return;
    uint8_t taken[WIDTH] = {0}; /* by a sprite in front of the others, which hides them even behind the background */
    int size = n->ctrl & 32 ? 16 : 8;
    for (int i = 0, found = 0; i < 64 && found < 8; i++) {
        const uint8_t *sprite = n->oam + 4 * i;
        uint8_t low, high;
        if ((unsigned)(line - sprite[0] - 1) >= (unsigned)size) continue;
        if (!sprite_row(n, i, line, &low, &high)) continue;
        found++;
        for (int j = 0; j < 8; j++) {
            int x = sprite[3] + j, value = sprite_pixel(sprite, low, high, j);
            if (!value || x >= WIDTH || taken[x] || (x < 8 && !(n->mask & 4))) continue;
            taken[x] = 1;
            if (!(sprite[2] & 32) || !seen[x]) out[x] = n->palette[colour(16 | (sprite[2] & 3) << 2 | value)] & 63;
        }
    }
}

/* ---- the PPU's time ---- */

static int32_t event_dot(const Nes *n) { return n->event / 2 * DOTS + (n->event & 1 ? FETCH : 1); }

static void next_line(Nes *n) { /* v moves down by one pixel, and back to the left */
    if ((n->v & 0x7000) != 0x7000) {
        n->v += 0x1000;
    } else {
        int row = n->v >> 5 & 31;
        n->v &= 0xfff;
        if (row == 29) n->v ^= 0x800;
        row = row == 29 || row == 31 ? 0 : row + 1;
        n->v = (n->v & ~0x3e0) | row << 5;
    }
}

/* Does what the PPU does up to this dot of the frame. */
static __attribute__((noinline)) void catch_up(Nes *n, int32_t dot) {
    for (;;) {
        int32_t next = event_dot(n);
        if (n->hit >= 0 && n->hit <= dot && n->hit < next) {
            n->status |= 64;
            n->hit = -1;
        }
        if (next > dot || n->event >= 2 * LINES) {
            n->next = n->hit >= 0 && n->hit < next ? n->hit : next;
            return;
        }
        int line = n->event / 2, shown = n->mask & 24;
        if (n->event & 1) {
            if (shown && line < HEIGHT) next_line(n);
            if (shown && (line < HEIGHT || line == LAST)) n->v = (n->v & ~0x41f) | (n->t & 0x41f);
            if (shown && line == LAST) n->v = (n->v & ~0x7be0) | (n->t & 0x7be0);
        } else if (line < HEIGHT) {
            int x = first_hit(n, line);
            n->hit = x < 0 ? -1 : line * DOTS + x + 2;
            if (n->draw) {
                if (shown) draw_line(n, line);
                else memset(n->picture[line], n->palette[0] & 63, WIDTH);
            }
        } else if (line == VBLANK) {
            n->status |= 128;
            n->nmi = n->ctrl >> 7;
        } else if (line == LAST) {
            n->status &= 31;
        }
        n->event++;
    }
}

/* ---- memory ---- */

static uint8_t *video(Nes *n, uint16_t address) {
    address &= 0x3fff;
    return address >= 0x3f00 ? n->palette + colour(address & 31) : n->vram + place(address);
}

static void step_address(Nes *n) { n->v = (n->v + (n->ctrl & 4 ? 32 : 1)) & 0x7fff; }

static __attribute__((noinline)) uint8_t read_register(Nes *n, uint16_t address, int cycles) {
    uint8_t value = 0;
    if (address < 0x4000) {
        catch_up(n, n->dot + 3 * (cycles - 1));
        switch (address & 7) {
        case 2:
            value = n->status;
            n->status &= 127;
            n->second = 0;
            break;
        case 4: value = n->oam[n->oam_address]; break;
        case 7:
            address = n->v & 0x3fff;
            value = address >= 0x3f00 ? *video(n, address) : n->buffer;
            n->buffer = address >= 0x2000 ? n->vram[place(address)] : cartridge.chr[address];
            step_address(n);
            break;
        }
    } else if (address == 0x4016) {
        if (n->strobe) n->shift = n->buttons;
        value = 64 | (n->shift & 1);
        n->shift = n->shift >> 1 | 128;
    } else if (address == 0x4017) {
        value = 64;
    }
    return value;
}

static inline __attribute__((always_inline)) uint8_t load(Nes *n, uint16_t address, int cycles) {
    if (address < 0x2000) return n->ram[address & 0x7ff];
    if (address >= 0x8000) return cartridge.prg[address & 0x7fff];
    return read_register(n, address, cycles);
}

/* Returns further cycles. */
static __attribute__((noinline)) int write_register(Nes *n, uint16_t address, uint8_t value, int cycles) {
    if (address < 0x4000) {
        catch_up(n, n->dot + 3 * (cycles - 1));
        switch (address & 7) {
        case 0:
            if (!(n->ctrl & 128) && value & 128 && n->status & 128) n->nmi = 1;
            n->ctrl = value;
            n->t = (n->t & ~0xc00) | (value & 3) << 10;
            break;
        case 1: n->mask = value; break;
        case 3: n->oam_address = value; break;
        case 4: n->oam[n->oam_address++] = value; break;
        case 5:
            if (n->second) {
                n->t = (n->t & ~0x73e0) | (value & 7) << 12 | (value >> 3) << 5;
            } else {
                n->t = (n->t & ~31) | value >> 3;
                n->fine_x = value & 7;
            }
            n->second ^= 1;
            break;
        case 6:
            if (n->second) {
                n->t = (n->t & 0x7f00) | value;
                n->v = n->t;
            } else {
                n->t = (n->t & 0xff) | (value & 63) << 8;
            }
            n->second ^= 1;
            break;
        case 7:
            if ((n->v & 0x3fff) >= 0x2000) *video(n, n->v) = value;
            step_address(n);
            break;
        }
    } else if (address == 0x4014) {
        for (int i = 0; i < 256; i++) n->oam[(n->oam_address + i) & 255] = load(n, (uint16_t)(value << 8 | i), 0);
        return 513 + ((n->cycles + cycles) & 1);
    } else if (address == 0x4016) {
        if (n->strobe && !(value & 1)) n->shift = n->buttons;
        n->strobe = value & 1;
    }
    return 0;
}

/* ---- CPU ---- */

static const uint8_t CYCLES[256] = {
    7, 6, 2, 2, 2, 3, 5, 2, 3, 2, 2, 2, 2, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
    6, 6, 2, 2, 3, 3, 5, 2, 4, 2, 2, 2, 4, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
    6, 6, 2, 2, 2, 3, 5, 2, 3, 2, 2, 2, 3, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
    6, 6, 2, 2, 2, 3, 5, 2, 4, 2, 2, 2, 5, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
    2, 6, 2, 2, 3, 3, 3, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 6, 2, 2, 4, 4, 4, 2, 2, 5, 2, 2, 2, 5, 2, 2,
    2, 6, 2, 2, 3, 3, 3, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 5, 2, 2, 4, 4, 4, 2, 2, 4, 2, 2, 4, 4, 4, 2,
    2, 6, 2, 2, 3, 3, 5, 2, 2, 2, 2, 2, 4, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
    2, 6, 2, 2, 3, 3, 5, 2, 2, 2, 2, 2, 4, 4, 6, 2, 2, 5, 2, 2, 2, 4, 6, 2, 2, 4, 2, 2, 2, 4, 7, 2,
};

static uint8_t SIGNS[256]; /* N and Z of a value */

/* A byte of the program, which is in the cartridge nearly always. */
static inline __attribute__((always_inline)) uint8_t code(const Nes *n, uint16_t pc) {
    return pc & 0x8000 ? cartridge.prg[pc & 0x7fff] : n->ram[pc & 0x7ff];
}

static uint16_t word(Nes *n, uint16_t address) { return load(n, address, 0) | load(n, (uint16_t)(address + 1), 0) << 8; }

/* The cycles for which a loop of so many cycles goes on, until the PPU does something. */
static int wait(const Nes *n, int loop) {
    int32_t dots = n->next - n->dot;
    return dots > 3 * loop ? (dots + 3 * loop - 1) / (3 * loop) * loop : loop;
}

/* Further cycles of the loop "LDA $2002, AND #mask, BEQ or BNE back", which ends when a bit of the PPU's status changes: all but its
   last turn are skipped. `pc` is after the LDA, whose result is `value`. */
static int polled(const Nes *n, uint16_t pc, uint8_t value) {
    uint8_t branch = code(n, (uint16_t)(pc + 2));
    if (code(n, pc) != 0x29 || (branch != 0xf0 && branch != 0xd0) || code(n, (uint16_t)(pc + 3)) != 0xf9) return 0;
    if (((pc - 3) ^ (pc + 4)) >> 8) return 0; /* across pages a turn takes ten cycles */
    if (!(value & code(n, (uint16_t)(pc + 1))) != (branch == 0xf0)) return 0;
    int32_t turns = (n->next - 10 - n->dot) / 27; /* of nine cycles; the PPU is read in the fourth */
    return turns > 0 ? 9 * turns : 0;
}

#define PUSH(value) (n->ram[0x100 | s--] = (uint8_t)(value))
#define POP() (n->ram[0x100 | ++s])
#define SET(flag, on) (p = (uint8_t)((on) ? p | (flag) : p & ~(flag)))
#define NZ(value) (p = (uint8_t)((p & ~(N | Z)) | SIGNS[value]))
#define ARG() code(n, pc++)
#define ARG2() (pc = (uint16_t)(pc + 2), (uint16_t)(code(n, (uint16_t)(pc - 2)) | code(n, (uint16_t)(pc - 1)) << 8))
#define ZERO_WORD(at) (n->ram[(uint8_t)(at)] | n->ram[(uint8_t)((at) + 1)] << 8)
#define CROSSES(base) (cycles += ((base) ^ address) >> 8 != 0)
#define STORE(value) do { \
        if (address < 0x2000) n->ram[address & 0x7ff] = (value); \
        else cycles += write_register(n, address, (value), cycles); \
    } while (0)

/* Addressing modes. Where a read crosses a page it takes a cycle more: EXTRA. */
#define ZP address = ARG();
#define ZPX address = (uint8_t)(ARG() + x);
#define ZPY address = (uint8_t)(ARG() + y);
#define ABS address = ARG2();
#define ABSX(EXTRA) { uint16_t base = ARG2(); address = (uint16_t)(base + x); EXTRA(base); }
#define ABSY(EXTRA) { uint16_t base = ARG2(); address = (uint16_t)(base + y); EXTRA(base); }
#define INDX { uint8_t at = (uint8_t)(ARG() + x); address = ZERO_WORD(at); }
#define INDY(EXTRA) { uint8_t at = ARG(); uint16_t base = ZERO_WORD(at); address = (uint16_t)(base + y); EXTRA(base); }
#define NOTHING(base) (void)(base)

#define READ value = load(n, address, cycles);
#define ALL_READS(op, DO) \
    case op + 13: ABS READ DO break; \
    OTHER_READS(op, DO)
#define OTHER_READS(op, DO) \
    case op + 9: value = ARG(); DO break; \
    case op + 5: ZP READ DO break; \
    case op + 21: ZPX READ DO break; \
    case op + 29: ABSX(CROSSES) READ DO break; \
    case op + 25: ABSY(CROSSES) READ DO break; \
    case op + 1: INDX READ DO break; \
    case op + 17: INDY(CROSSES) READ DO break;
#define ALL_CHANGES(op, DO) \
    case op + 6: ZP READ DO STORE(value); break; \
    case op + 22: ZPX READ DO STORE(value); break; \
    case op + 14: ABS READ DO STORE(value); break; \
    case op + 30: ABSX(NOTHING) READ DO STORE(value); break;
#define BRANCH(op, condition) \
    case op: { \
        int8_t away = (int8_t)ARG(); \
        if (condition) { \
            uint16_t to = (uint16_t)(pc + away); \
            cycles += 1 + ((to ^ pc) >> 8 != 0); \
            pc = to; \
        } \
        break; \
    }
#define ADD { \
        int sum = a + value + (p & C); \
        SET(V, ~(a ^ value) & (a ^ sum) & 128); \
        SET(C, sum > 255); \
        a = (uint8_t)sum; \
        NZ(a); \
    }
#define COMPARE(with) { SET(C, with >= value); NZ((uint8_t)(with - value)); }
#define ASL { SET(C, value & 128); value = (uint8_t)(value << 1); NZ(value); }
#define LSR { SET(C, value & 1); value >>= 1; NZ(value); }
#define ROL { int carry = p & C; SET(C, value & 128); value = (uint8_t)(value << 1 | carry); NZ(value); }
#define ROR { int carry = p & C; SET(C, value & 1); value = (uint8_t)(value >> 1 | carry << 7); NZ(value); }
#define INTERRUPT(vector, flags) do { \
        PUSH(pc >> 8); \
        PUSH(pc); \
        PUSH(p | (flags) | U); \
        p |= I; \
        pc = word(n, vector); \
    } while (0)

/* Runs instructions up to this dot of the frame. */
static void run(Nes *n, int32_t end) {
    uint16_t pc = n->pc, address;
    uint8_t a = n->a, x = n->x, y = n->y, s = n->s, p = n->p, value;
    while (n->dot < end) {
        int cycles = 7;
        if (n->nmi) {
            n->nmi = 0;
            INTERRUPT(0xfffa, 0);
        } else {
            uint8_t op = ARG();
            cycles = CYCLES[op];
            switch (op) {
            ALL_READS(0x00, { a |= value; NZ(a); })
            ALL_READS(0x20, { a &= value; NZ(a); })
            ALL_READS(0x40, { a ^= value; NZ(a); })
            ALL_READS(0x60, ADD)
            OTHER_READS(0xa0, { a = value; NZ(a); })
            ALL_READS(0xc0, COMPARE(a))
            ALL_READS(0xe0, { value = (uint8_t)~value; ADD })
            ALL_CHANGES(0x00, ASL)
            ALL_CHANGES(0x20, ROL)
            ALL_CHANGES(0x40, LSR)
            ALL_CHANGES(0x60, ROR)
            ALL_CHANGES(0xc0, { value--; NZ(value); })
            ALL_CHANGES(0xe0, { value++; NZ(value); })
            BRANCH(0x10, !(p & N)) BRANCH(0x30, p & N) BRANCH(0x50, !(p & V)) BRANCH(0x70, p & V)
            BRANCH(0x90, !(p & C)) BRANCH(0xb0, p & C) BRANCH(0xd0, !(p & Z)) BRANCH(0xf0, p & Z)
            case 0x85: ZP STORE(a); break;
            case 0x95: ZPX STORE(a); break;
            case 0x8d: ABS STORE(a); break;
            case 0x9d: ABSX(NOTHING) STORE(a); break;
            case 0x99: ABSY(NOTHING) STORE(a); break;
            case 0x81: INDX STORE(a); break;
            case 0x91: INDY(NOTHING) STORE(a); break;
            case 0x86: ZP STORE(x); break;
            case 0x96: ZPY STORE(x); break;
            case 0x8e: ABS STORE(x); break;
            case 0x84: ZP STORE(y); break;
            case 0x94: ZPX STORE(y); break;
            case 0x8c: ABS STORE(y); break;
            case 0xa2: x = ARG(); NZ(x); break;
            case 0xa6: ZP READ x = value; NZ(x); break;
            case 0xb6: ZPY READ x = value; NZ(x); break;
            case 0xae: ABS READ x = value; NZ(x); break;
            case 0xbe: ABSY(CROSSES) READ x = value; NZ(x); break;
            case 0xa0: y = ARG(); NZ(y); break;
            case 0xa4: ZP READ y = value; NZ(y); break;
            case 0xb4: ZPX READ y = value; NZ(y); break;
            case 0xac: ABS READ y = value; NZ(y); break;
            case 0xbc: ABSX(CROSSES) READ y = value; NZ(y); break;
            case 0xe0: value = ARG(); COMPARE(x) break;
            case 0xe4: ZP READ COMPARE(x) break;
            case 0xec: ABS READ COMPARE(x) break;
            case 0xc0: value = ARG(); COMPARE(y) break;
            case 0xc4: ZP READ COMPARE(y) break;
            case 0xcc: ABS READ COMPARE(y) break;
            case 0x24: ZP READ goto bit;
            case 0x2c: ABS READ
            bit:
                p = (uint8_t)((p & ~(N | V | Z)) | (value & (N | V)) | (value & a ? 0 : Z));
                break;
            case 0xad:
                ABS READ
                if (address == 0x2002) cycles += polled(n, pc, value);
                a = value;
                NZ(a);
                break;
            case 0x0a: value = a; ASL a = value; break;
            case 0x2a: value = a; ROL a = value; break;
            case 0x4a: value = a; LSR a = value; break;
            case 0x6a: value = a; ROR a = value; break;
            case 0x08: PUSH(p | B | U); break;
            case 0x28: p = (uint8_t)((POP() & ~B) | U); break;
            case 0x48: PUSH(a); break;
            case 0x68: a = POP(); NZ(a); break;
            case 0x88: y--; NZ(y); break;
            case 0xc8: y++; NZ(y); break;
            case 0xca: x--; NZ(x); break;
            case 0xe8: x++; NZ(x); break;
            case 0x8a: a = x; NZ(a); break;
            case 0x98: a = y; NZ(a); break;
            case 0xa8: y = a; NZ(y); break;
            case 0xaa: x = a; NZ(x); break;
            case 0xba: x = s; NZ(x); break;
            case 0x9a: s = x; break;
            case 0x18: SET(C, 0); break;
            case 0x38: SET(C, 1); break;
            case 0x58: SET(I, 0); break;
            case 0x78: SET(I, 1); break;
            case 0xb8: SET(V, 0); break;
            case 0xd8: SET(D, 0); break;
            case 0xf8: SET(D, 1); break;
            case 0x00:
                pc++;
                INTERRUPT(0xfffe, B);
                break;
            case 0x20:
                address = ARG2();
                PUSH((pc - 1) >> 8);
                PUSH(pc - 1);
                pc = address;
                break;
            case 0x40:
                p = (uint8_t)((POP() & ~B) | U);
                pc = POP();
                pc = (uint16_t)(pc | POP() << 8);
                break;
            case 0x60:
                pc = POP();
                pc = (uint16_t)((pc | POP() << 8) + 1);
                break;
            case 0x4c:
                address = ARG2();
                if (address == (uint16_t)(pc - 3)) cycles = wait(n, 3);
                pc = address;
                break;
            case 0x6c:
                address = ARG2(); /* the second byte is of the same page */
                pc = (uint16_t)(load(n, address, 0) | load(n, (uint16_t)((address & 0xff00) | ((address + 1) & 255)), 0) << 8);
                break;
            }
        }
        n->cycles += (uint32_t)cycles;
        n->dot += 3 * cycles;
        if (n->dot >= n->next) catch_up(n, n->dot);
    }
    n->pc = pc, n->a = a, n->x = x, n->y = y, n->s = s, n->p = p;
}

/* ---- what Python calls ---- */

int nes_size(void) { return (int)sizeof(Nes); }
int nes_picture(void) { return (int)offsetof(Nes, picture); }

/* Takes an iNES file; 0 where it is not one of a cartridge without a mapper. */
int nes_insert(const uint8_t *file, int size) {
    if (size < 16 || memcmp(file, "NES\x1a", 4) || file[6] >> 4 || file[7] >> 4) return 0;
    int prg = file[4] * 0x4000, trainer = file[6] & 4 ? 512 : 0;
    if ((prg != 0x4000 && prg != 0x8000) || file[5] != 1 || size < 16 + trainer + prg + 0x2000) return 0;
    const uint8_t *data = file + 16 + trainer;
    for (int i = 0; i < 0x8000; i += prg) memcpy(cartridge.prg + i, data, (size_t)prg);
    memcpy(cartridge.chr, data + prg, 0x2000);
    for (int i = 0; i < 256; i++) SIGNS[i] = (uint8_t)((i & N) | (i ? 0 : Z));
    for (int i = 0; i < 0x1000; i++) {
        for (int j = 0; j < 8; j++) {
            const uint8_t *pattern = cartridge.chr + (i >> 3) * 16 + (i & 7);
            cartridge.rows[i][j] = (uint8_t)((pattern[0] >> (7 - j) & 1) | (pattern[8] >> (7 - j) & 1) << 1);
        }
    }
    cartridge.vertical = file[6] & 1;
    return 1;
}

void nes_power_on(Nes *n) {
    memset(n, 0, sizeof *n);
    n->s = 0xfd;
    n->p = I | U;
    n->hit = -1;
    n->pc = word(n, 0xfffc);
}

/* Runs `frames` frames while `buttons` are held; the last one is drawn. A frame ends with the line before the picture's first. */
void nes_run(Nes *n, int frames, int buttons) {
    n->buttons = (uint8_t)buttons;
    for (int frame = 0; frame < frames; frame++) {
        n->draw = frame == frames - 1;
        int32_t end = LINES * DOTS;
        catch_up(n, n->dot);
        run(n, end);
        n->odd ^= 1;
        n->dot -= end - (n->odd && n->mask & 24);
        n->event = 0;
    }
}
