// What a variant needs beyond WGSL's core.
#ifdef SHADER_F16
enable f16;
#endif
#ifdef SUBGROUPS
#ifdef WEB
// Browsers demand the line, naga refuses it.
enable subgroups;
#endif
#endif
