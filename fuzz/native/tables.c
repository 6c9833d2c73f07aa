/* Key tables (native/table.h, shared.h, plan.h, hot.h): acts that the input chooses, on a private and a shared table, which
 * is damaged now and then.  When the input is used up, a generator chooses on.
 */
#include "../../tests/native/fuzz.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choose_by(data, size);
    if (!act_at_random(40))
        abort();
    return 0;
}
