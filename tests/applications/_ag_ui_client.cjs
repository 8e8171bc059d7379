// Runs HttpAgent of @ag-ui/client: its module, the URL, and the steps of a conversation as JSON.
// Prints the events, the messages and the error of each step. The client itself refuses events in a wrong order.
const [, , module_path, url, steps] = process.argv;
const { HttpAgent } = require(module_path);

async function main() {
  const agent = new HttpAgent({ url, threadId: "thread-1" });
  const results = [];
  for (const { say, answer, leave_at } of JSON.parse(steps)) {
    const events = [];
    const onEvent = ({ event }) => {
      events.push(event);
      if (event.type === leave_at) agent.abortRun();
    };
    let error = null;
    if (say !== undefined) agent.addMessage({ id: `user-${results.length}`, role: "user", content: say });
    const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: answer }));
    await agent.runAgent(answer === undefined ? {} : { resume }, { onEvent }).catch((failure) => void (error = failure.message));
    results.push({ events, error, messages: structuredClone(agent.messages) });
  }
  process.stdout.write(JSON.stringify(results));
}

main();
