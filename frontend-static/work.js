// A proof of work in a worker: searches a number for which SHA-256(prefix + number) begins with enough zero bits. Plain arithmetic is
// used, because crypto.subtle answers each hash through a promise, which takes longer than the hash. To stop, the page terminates the
// worker.

const K = new Int32Array([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
]);
const START = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
const w = new Int32Array(64);

/** Mixes the block of 64 bytes that begins at `at` into the state. */
function mix(state, bytes, at) {
  for (let i = 0; i < 16; i++, at += 4) w[i] = bytes[at] << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15];
    const y = w[i - 2];
    const s0 = (x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3;
    const s1 = (y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
  for (let i = 0; i < 64; i++) {
    const s1 = (e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7);
    const t1 = h + s1 + (e & f ^ ~e & g) + K[i] + w[i] | 0;
    const s0 = (a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10);
    const t2 = s0 + (a & b ^ a & c ^ b & c) | 0;
    h = g; g = f; f = e; e = d + t1 | 0;
    d = c; c = b; b = a; a = t1 + t2 | 0;
  }
  state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e; state[5] += f; state[6] += g; state[7] += h;
}

function zeroBits(state) {
  let i = 0;
  while (i < 7 && state[i] === 0) i++;
  return 32 * i + Math.clz32(state[i]);
}

/** A search that tries 0, 1, 2 and so on. `run` makes this many tries, and returns the found number as text, or null. */
export function search(prefix, difficulty) {
  const head = new TextEncoder().encode(prefix);
  // The prefix's whole blocks are the same in every try, so they are mixed in once.
  const whole = head.length - head.length % 64;
  const before = new Int32Array(START);
  for (let at = 0; at < whole; at += 64) mix(before, head, at);
  const state = new Int32Array(8);
  const from = head.length - whole;
  const block = new Uint8Array(128);
  let to; // behind the last digit
  let length; // of what is left to mix: one block, or two
  const lay = (digits) => {
    block.fill(0);
    block.set(head.subarray(whole));
    for (let i = 0; i < digits; i++) block[from + i] = 48;
    if (digits > 1) block[from] = 49; // 10, 100, …
    to = from + digits;
    block[to] = 0x80;
    length = to + 9 <= 64 ? 64 : 128;
    new DataView(block.buffer).setUint32(length - 4, (head.length + digits) * 8);
  };
  const next = () => {
    let at = to - 1;
    while (at >= from && block[at] === 57) block[at--] = 48;
    if (at < from) lay(to - from + 1);
    else block[at]++;
  };
  lay(1);
  return {
    tries: 0,
    run(count) {
      for (; count > 0; count--) {
        state.set(before);
        for (let at = 0; at < length; at += 64) mix(state, block, at);
        this.tries++;
        if (zeroBits(state) >= difficulty) return String.fromCharCode(...block.subarray(from, to));
        next();
      }
      return null;
    },
  };
}

/** How often the page gets the progress. */
const BATCH_MS = 100;

self.addEventListener("message", ({ data: { prefix, difficulty } }) => {
  const work = search(prefix, difficulty);
  let nonce = null;
  while (nonce === null) {
    const until = performance.now() + BATCH_MS;
    do nonce = work.run(512); while (nonce === null && performance.now() < until);
    self.postMessage({ nonce, tries: work.tries });
  }
});
