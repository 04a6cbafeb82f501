// Requests as JSON lines on standard input, answers as JSON lines on standard output.

import { createInterface } from "node:readline";

const write = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // what a library prints

// Answer {"do": name, ...its arguments} with {"result": …} or {"error": …}, until standard input ends.
export async function serve(operations) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...request } = JSON.parse(line);
    let answer;
    try {
      answer = { result: (await operations[name](request)) ?? null };
    } catch (error) {
      answer = { error: String(error?.description ?? error?.message ?? error) };
    }
    write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}
