// Runs in a page of the hub.
async (asked) => (await import("/bench/cpu.js")).expertTimes(asked);
