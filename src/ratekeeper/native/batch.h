/* A plan while it is decided: its checks in numbers, and the memory for that. */
#ifndef RATEKEEPER_BATCH_H
#define RATEKEEPER_BATCH_H

#include "core.h"

typedef struct {
    int count;
    Item *items;
    Item **order;
    TableObject **tables;
    Evidence *evidence;
    void *memory; /* to be freed; NULL: it belongs to the caller */
} Batch;

static const Evidence BOUNDLESS = {false, true, {0, 0, 0}};

/* The bytes that a batch of these tables needs, and how to divide them. */
size_t batch_bytes(TableObject *const *tables, int count);
void share_out(Batch *batch, void *memory);

/* The table of a space and a limit, found by their identity; a new reference. */
TableObject *table_for(StoreObject *self, PyObject *space, PyObject *limit);

/* Read the checks of a plan; false with an error set.  Call drop_batch afterwards. */
bool make_batch(StoreObject *self, PyObject *plan, Batch *batch);
void drop_batch(Batch *batch);

/* Lock the regions of some items; returns how many, or -1 with an error set. */
int lock_items(Batch *batch, int from, int count);

/* Lock the regions of some items, and read their states and the clock; -1 with an error set. */
int open_items(StoreObject *self, Batch *batch, int from, int until);

/* Decide all items as one: their decisions in a tuple, and whether all were admitted. */
PyObject *decide_batch(StoreObject *self, Batch *batch, bool peek, bool *allowed);

/* Whether these are keys for a prepared plan; else false with an error set. */
bool are_keys_of(const PreparedObject *plan, PyObject *keys);

/* Hash keys into items; those that are also in `before`, which may be NULL, are hashed already. */
bool hash_keys(const PreparedObject *plan, PyObject *keys, PyObject *before, Item *items);

#endif
