// Loaded into a server that would listen on every address: it listens on loopback, and prints the port that it has.
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => process.stdout.write(`listens at ${this.address().port}\n`));
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...rest.filter((one) => typeof one === "function"));
};
