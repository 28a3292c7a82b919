// CartPole as a program of its own, which asks Headrace for the actions of several environments at once. No packages.
//
//     headrace up --env remote --env.port 7654
//     node --experimental-websocket cartpole.mjs ws://127.0.0.1:7654
//
// From version 22 on, node needs no flag. In a page: import { train } from "./cartpole.mjs"; train(address, token), and
// --env.origins names the page's origin. For a simulator of your own replace CartPole: its two spaces, `reset` and `step`.

const FIRST_PAUSE = 0.5, LONGEST_PAUSE = 10; // seconds between two attempts to connect
const ENVIRONMENTS = 8;

// The simulator: the physics of Gymnasium's CartPole-v1.
class CartPole {
  static observation = { kind: "box", shape: [4] };
  static action = { kind: "discrete", n: 2 };

  // Begins an episode. Returns its first observation: position and speed of the cart, angle and spin of the pole.
  reset() {
    this.steps = 0;
    this.state = [0, 0, 0, 0].map(() => Math.random() * 0.1 - 0.05);
    return this.state;
  }

  step(action) {
    const [x, speed, angle, spin] = this.state;
    const force = action === 1 ? 10 : -10;
    const sin = Math.sin(angle), cos = Math.cos(angle);
    const push = (force + 0.05 * spin * spin * sin) / 1.1;
    const spinChange = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
    const speedChange = push - (0.05 * spinChange * cos) / 1.1;
    this.state = [x + 0.02 * speed, speed + 0.02 * speedChange, angle + 0.02 * spin, spin + 0.02 * spinChange];
    this.steps += 1;
    const terminated = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * Math.PI) / 180;
    return { observation: this.state, reward: 1, terminated, truncated: this.steps >= 500 && !terminated };
  }
}

class Broken extends Error {} // the connection has ended
class Refused extends Error {} // and Headrace has said why, and wants this program to stay away

// JSON over WebSocket. A promise of `ask` is rejected where the connection ends.
class Connection {
  constructor(address) {
    this.socket = new WebSocket(address);
    this.socket.onerror = this.socket.onclose = () => this.end(new Broken("nothing answers there, or the connection broke"));
    this.socket.onmessage = (event) => {
      const answer = JSON.parse(event.data);
      if (!("close" in answer)) return this.resolve(answer);
      this.end(answer.again ? new Broken(answer.close) : new Refused(answer.close));
      this.socket.close();
    };
  }

  open() {
    return this.promise((resolve) => (this.socket.onopen = resolve));
  }

  // Sends a message. Its promise is that of the answer.
  ask(message) {
    return this.promise(() => this.socket.send(JSON.stringify(message)));
  }

  promise(begin) {
    return new Promise((resolve, reject) => {
      Object.assign(this, { resolve, reject });
      if (this.error) reject(this.error);
      else begin(resolve);
    });
  }

  end(error) {
    this.error ??= error;
    this.reject?.(this.error);
  }
}

// Steps simulators with the actions that Headrace chooses, until the connection ends.
async function play(connection, simulators) {
  const restart = () => ({ observation: simulators.map((one) => one.reset()) });
  let message = restart();
  for (;;) {
    const answer = await connection.ask(message);
    if (answer.reset) { // in place of actions: new episodes are wanted
      message = restart();
      continue;
    }
    const results = simulators.map((one, k) => one.step(answer.action[k]));
    message = {
      reward: results.map((one) => one.reward),
      terminated: results.map((one) => one.terminated),
      truncated: results.map((one) => one.truncated),
      final_observation: results.map((one) => one.observation),
      observation: results.map((one, k) => (one.terminated || one.truncated ? simulators[k].reset() : one.observation)),
    };
  }
}

// Connects again and again. Its promise is rejected with Refused where that is of no use.
export async function train(address, token, say = console.log) {
  const { observation, action } = CartPole;
  const hello = { token, observation, action, environments: ENVIRONMENTS, name: "cartpole.mjs" };
  for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    try {
      const connection = new Connection(address);
      await connection.open();
      await connection.ask(hello);
      say(`connected to ${address}`);
      pause = FIRST_PAUSE;
      await play(connection, Array.from({ length: ENVIRONMENTS }, () => new CartPole()));
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      say(`${address}: ${error.message}; again in ${pause} s`);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
  }
}

async function readToken() {
  const { readFile } = await import("node:fs/promises");
  const { homedir } = await import("node:os");
  const folder = process.env.XDG_CONFIG_HOME || `${homedir()}/.config`;
  return process.env.HEADRACE_TOKEN || (await readFile(`${folder}/headrace/token`, "utf8")).trim();
}

if (globalThis.process?.argv[1]?.endsWith("cartpole.mjs")) { // node, and this is the program
  try {
    await train(process.argv[2] ?? "ws://127.0.0.1:7654", await readToken());
  } catch (error) {
    console.error(error instanceof Refused ? `Headrace ends this: ${error.message}` : error);
    process.exit(1);
  }
}
