// Socket.IO with its Redis streams adapter, as its documentation sets it up: a server, a producer on another node, readers.
import { createServer } from "node:http";
import { createAdapter } from "@socket.io/redis-streams-adapter";
import { createClient } from "redis";
import { Server } from "socket.io";
import { io as connect } from "socket.io-client";

const [role, redisPort, port, clients, seconds] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const body = "x".repeat(200);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function node() {
  const redis = createClient({ url: `redis://127.0.0.1:${redisPort}` });
  await redis.connect();
  const http = createServer();
  const io = new Server(http, { adapter: createAdapter(redis), connectionStateRecovery: {} });
  return { http, io, redis };
}

if (role === "serve") {
  const { http, io } = await node();
  io.on("connection", (socket) => socket.join(`user-${socket.handshake.auth.name}`));
  http.listen(port, "127.0.0.1");
} else if (role === "produce") {
  const { io, redis } = await node();
  await pause(500);
  const ends = Date.now() + seconds * 1000;
  for (let n = 0; Date.now() < ends; n += 1) {
    io.to(`user-${n % clients}`).emit("message", body);
    // A round trip now and then: what is written faster than Redis takes it would only fill this process's memory.
    if (n % 200 === 199) await redis.ping();
  }
  process.exit(0);
} else {
  let count = 0;
  const sockets = Array.from({ length: clients }, (_, name) =>
    connect(`http://127.0.0.1:${port}`, { transports: ["websocket"], auth: { name: String(name) }, forceNew: true }));
  for (const socket of sockets) socket.on("message", () => { count += 1; });
  await Promise.all(sockets.map((socket) => socket.connected || new Promise((resolve) => socket.on("connect", resolve))));
  console.log("connected");
  while (!count) await pause(10);
  await pause(500);
  const [before, began] = [count, performance.now()];
  await pause(seconds * 1000);
  console.log(JSON.stringify({ rate: ((count - before) * 1000) / (performance.now() - began) }));
  process.exit(0);
}
