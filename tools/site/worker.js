// Search runs in a worker, and a browser starts none from file://. There this takes its place, in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const base = new URL(url, location);
      this.inner = inner;
      const load = (address) => new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = new URL(address, base).href;
        script.onload = resolve;
        script.onerror = reject;
        inner.document.body.append(script);
      });
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inner.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      this.ready = load(base);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
