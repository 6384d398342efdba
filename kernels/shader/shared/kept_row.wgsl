// A rounded row in a workgroup's memory, for kernels whose every thread reads it.

@group(0) @binding(3) var<storage, read> rounded: array<u32>;

override N_WORDS: u32;  // of the row

var<workgroup> x: array<u32, N_WORDS>;

// Copies the row that starts at word `first`. All threads call it together, and wait for each other before they read it.
fn keep_row(first: u32, thread: u32) {
    for (var i = 0u; i < (N_WORDS + THREADS - 1u) / THREADS; i++) {
        let word = i * THREADS + thread;
        if N_WORDS % THREADS == 0u || word < N_WORDS {
            x[word] = rounded[first + word];
        }
    }
}
