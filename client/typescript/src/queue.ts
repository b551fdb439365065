/** What one side pushes and the other iterates. An iteration that is left early loses nothing. */
export class Queue<T> implements AsyncIterable<T> {
  readonly #items: T[] = [];
  #over = false;
  #error: unknown;
  #wake: () => void = () => {};

  push(item: T): void {
    if (this.#over) return;
    this.#items.push(item);
    this.#wake();
  }

  /** Nothing more comes; an error is raised behind what is still there. */
  end(error?: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.#error = error;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for (;;) {
      if (this.#items.length > 0) yield this.#items.shift() as T;
      else if (!this.#over) await new Promise<void>((wake) => (this.#wake = wake));
      else if (this.#error !== undefined) throw this.#error;
      else return;
    }
  }
}
