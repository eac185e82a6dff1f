// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "memory_files.h"

#include "file.h"

#include <sanitizer/asan_interface.h>
#include <stdlib.h>

static const uint8_t *config;
static size_t config_size, model_size;
static _Alignas(4096) uint8_t model[MEMORY_MODEL_BYTES];

// Memory that was freed is kept from use for a while; not for long, which would cost speed.
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=8";
}

void memory_config(const uint8_t *data, size_t size)
{
    config = data;
    config_size = size;
}

uint8_t *memory_model(size_t size)
{
    ASAN_UNPOISON_MEMORY_REGION(model, sizeof model);
    ASAN_POISON_MEMORY_REGION(model + size, sizeof model - size);
    model_size = size;
    return model;
}

int clb_file_read(const char *path, size_t limit, char **text, size_t *size, colibri_error *error)
{
    if (config_size > limit)
        return clb_error(error, COLIBRI_ERROR_FILE, "%s is too large", path);
    *text = malloc(config_size + 1);
    memcpy(*text, config, config_size);
    (*text)[config_size] = 0;
    *size = config_size;
    return 0;
}

int clb_map_open(struct clb_map *map, const char *path, bool lock, colibri_error *error)
{
    (void)lock;
    *map = (struct clb_map){.data = model, .size = model_size};
    return model_size ? 0 : clb_error(error, COLIBRI_ERROR_TRUNCATED, "%s has 0 bytes", path);
}

void clb_map_close(struct clb_map *map)
{
    *map = (struct clb_map){0};
}
