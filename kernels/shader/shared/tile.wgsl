// What a dispatch is told. The structs are src/engine/gpu/structs.rs's, checked against it at build time.
#import shape
#import tiles

@group(0) @binding(1) var<storage, read> tiles: array<Tile>;
