// The official client for Java, in a fixed script: see ../go/main.go. It knows transactions, too.

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.models.*;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.*;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

public class Client {
  static final Duration WAIT = Duration.ofSeconds(20);
  static final int LARGE = 200_000;
  static final String QUEUE = System.getenv("QUEUE"), SESSIONS = System.getenv("SESSIONS");
  static final String TOPIC = System.getenv("TOPIC"), SUBSCRIPTION = System.getenv("SUBSCRIPTION");

  static final ServiceBusClientBuilder builder = builder();
  static final ServiceBusSenderClient sender = builder.sender().queueName(QUEUE).buildClient();
  static final ServiceBusReceiverClient receiver = receiver(QUEUE, SubQueue.NONE, ServiceBusReceiveMode.PEEK_LOCK);

  static ServiceBusClientBuilder builder() {
    return new ServiceBusClientBuilder()
        .connectionString(System.getenv("CONNECTION_STRING"))
        .retryOptions(new AmqpRetryOptions().setTryTimeout(WAIT).setMaxRetries(1));
  }

  static ServiceBusReceiverClient subscription() {
    var mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE;
    return builder.receiver().topicName(TOPIC).subscriptionName(SUBSCRIPTION).receiveMode(mode).buildClient();
  }

  static ServiceBusReceiverClient receiver(String queue, SubQueue part, ServiceBusReceiveMode mode) {
    var made = builder.receiver().queueName(queue).receiveMode(mode).disableAutoComplete();
    return (part == SubQueue.NONE ? made : made.subQueue(part)).buildClient();
  }

  static List<ServiceBusReceivedMessage> take(ServiceBusReceiverClient from, int count) {
    var found = new ArrayList<ServiceBusReceivedMessage>();
    while (found.size() < count) {
      var some = from.receiveMessages(count - found.size(), WAIT).stream().collect(Collectors.toList());
      if (some.isEmpty()) throw new IllegalStateException(found.size() + " of " + count + " were received");
      found.addAll(some);
    }
    return found;
  }

  static ServiceBusReceivedMessage one(ServiceBusReceiverClient from) {
    return take(from, 1).get(0);
  }

  static List<String> bodies(Iterable<ServiceBusReceivedMessage> messages) {
    var found = new ArrayList<String>();
    messages.forEach(each -> found.add(each.getBody().toString()));
    return found;
  }

  static ServiceBusMessage message(String body) {
    return new ServiceBusMessage(body);
  }

  static List<String> left() {
    try (var peeking = receiver(QUEUE, SubQueue.NONE, ServiceBusReceiveMode.PEEK_LOCK)) {
      return bodies(peeking.peekMessages(9));
    }
  }

  static Object refusal(Runnable run) {
    try {
      run.run();
      return null;
    } catch (ServiceBusException error) {
      return error.getReason().toString();
    }
  }

  static Object single() {
    var sent = message("single").setMessageId("id").setContentType("text/plain").setSubject("wanted");
    sent.getApplicationProperties().putAll(Map.of("kept", 7L, "text", "t", "truth", true));
    sender.sendMessage(sent);
    var found = one(receiver);
    receiver.complete(found);
    return Arrays.asList(found.getBody().toString(), found.getMessageId(), found.getContentType(), found.getSubject(),
        new TreeMap<>(found.getApplicationProperties()), found.getDeliveryCount(),
        found.getLockedUntil().isAfter(OffsetDateTime.now()), found.getState().toString());
  }

  static Object batch() {
    var batch = sender.createMessageBatch();
    for (var body : List.of("a", "b", "c")) batch.tryAddMessage(message(body));
    var tooLarge = refusal(() -> batch.tryAddMessage(new ServiceBusMessage(BinaryData.fromBytes(new byte[300_000]))));
    sender.sendMessages(batch);
    var found = take(receiver, 3);
    found.forEach(receiver::complete);
    return Arrays.asList(bodies(found), tooLarge, batch.getMaxSizeInBytes());
  }

  static Object large() {
    var body = new byte[LARGE];
    for (int at = 0; at < LARGE; at++) body[at] = (byte) at;
    sender.sendMessage(new ServiceBusMessage(BinaryData.fromBytes(body)));
    var found = one(receiver);
    receiver.complete(found);
    return Arrays.equals(found.getBody().toBytes(), body);
  }

  static Object schedule() {
    var at = OffsetDateTime.now().plusHours(1);
    var numbers = new ArrayList<Long>();
    sender.scheduleMessages(List.of(message("later"), message("never")), at).forEach(numbers::add);
    var peeked = left();
    sender.cancelScheduledMessages(numbers);
    return List.of(numbers.size(), numbers.get(0) > 0, peeked, left());
  }

  static Object abandon() {
    sender.sendMessage(message("again"));
    receiver.abandon(one(receiver), new AbandonOptions().setPropertiesToModify(Map.of("kept", "yes")));
    var found = one(receiver);
    receiver.complete(found);
    return List.of(found.getDeliveryCount(), found.getApplicationProperties());
  }

  static Object defer() {
    sender.sendMessage(message("deferred"));
    var found = one(receiver);
    receiver.defer(found);
    var again = receiver.receiveDeferredMessage(found.getSequenceNumber());
    receiver.complete(again);
    return List.of(again.getBody().toString(), again.getState().toString());
  }

  static Object deadLetter() {
    sender.sendMessage(message("dead"));
    var options = new DeadLetterOptions().setDeadLetterReason("reason").setDeadLetterErrorDescription("description");
    receiver.deadLetter(one(receiver), options);
    try (var dead = receiver(QUEUE, SubQueue.DEAD_LETTER_QUEUE, ServiceBusReceiveMode.PEEK_LOCK)) {
      var found = one(dead);
      dead.complete(found);
      return List.of(found.getBody().toString(), found.getDeadLetterReason(), found.getDeadLetterErrorDescription());
    }
  }

  static Object renew() {
    sender.sendMessage(message("renewed"));
    var found = one(receiver);
    var before = found.getLockedUntil();
    var after = receiver.renewMessageLock(found);
    receiver.complete(found);
    return !after.isBefore(before);
  }

  static Object transactions() {
    var ends = new ArrayList<Object>();
    for (boolean commits : new boolean[] {false, true}) {
      var transaction = sender.createTransaction();
      sender.sendMessage(message("sent"), transaction);
      ends.add(left());
      if (commits) sender.commitTransaction(transaction);
      else sender.rollbackTransaction(transaction);
      ends.add(left());
    }
    var transaction = receiver.createTransaction();
    receiver.complete(one(receiver), new CompleteOptions().setTransactionContext(transaction));
    receiver.commitTransaction(transaction);
    ends.add(left());
    return ends;
  }

  static Object acrossEntities() {
    sender.sendMessage(message("in"));
    var across = builder().enableCrossEntityTransactions();
    try (var in = across.receiver().queueName(QUEUE).disableAutoComplete().buildClient();
        var out = across.sender().topicName(TOPIC).buildClient();
        var audit = subscription()) {
      var found = one(in);
      var transaction = in.createTransaction();
      out.sendMessage(message("out").setSubject("wanted"), transaction);
      in.complete(found, new CompleteOptions().setTransactionContext(transaction));
      in.commitTransaction(transaction);
      return List.of(bodies(take(audit, 1)), left());
    }
  }

  static Object sessions() {
    try (var out = builder.sender().queueName(SESSIONS).buildClient();
        var accepting = builder.sessionReceiver().queueName(SESSIONS).disableAutoComplete().buildClient()) {
      for (var body : List.of("1", "2")) out.sendMessage(message(body).setSessionId("s"));
      List<ServiceBusReceivedMessage> found;
      try (var held = accepting.acceptSession("s")) {
        held.setSessionState("state".getBytes());
        found = take(held, 2);
        held.complete(found.get(0));
        held.renewSessionLock();
      }
      try (var next = accepting.acceptNextSession()) {
        var state = new String(next.getSessionState());
        var rest = one(next);
        next.complete(rest);
        return List.of(bodies(found), next.getSessionId(), state, rest.getBody().toString(), rest.getDeliveryCount());
      }
    }
  }

  static Object topic() {
    try (var out = builder.sender().topicName(TOPIC).buildClient();
        var in = subscription()) {
      out.sendMessage(message("no").setSubject("unwanted"));
      out.sendMessage(message("yes").setSubject("wanted"));
      return bodies(take(in, 1));
    }
  }

  /** It closes the receiver, whose link may have credit: the messages would be that one's. */
  static Object peek() {
    receiver.close();
    sender.sendMessages(List.of(message("1"), message("2")));
    try (var deleting = receiver(QUEUE, SubQueue.NONE, ServiceBusReceiveMode.RECEIVE_AND_DELETE)) {
      return List.of(left(), bodies(take(deleting, 2)), left());
    }
  }

  static Object missing() {
    try (var nowhere = builder.sender().queueName("nowhere").buildClient()) {
      return refusal(() -> nowhere.sendMessage(message("x")));
    }
  }

  public static void main(String[] arguments) {
    var steps = new LinkedHashMap<String, Callable<Object>>();
    steps.put("send and complete", Client::single);
    steps.put("batch", Client::batch);
    steps.put("large", Client::large);
    steps.put("schedule and cancel", Client::schedule);
    steps.put("abandon", Client::abandon);
    steps.put("defer", Client::defer);
    steps.put("dead-letter", Client::deadLetter);
    steps.put("renew a lock", Client::renew);
    steps.put("transactions", Client::transactions);
    steps.put("a transaction across entities", Client::acrossEntities);
    steps.put("sessions", Client::sessions);
    steps.put("topic and subscription", Client::topic);
    steps.put("an entity that is not there", Client::missing);
    steps.put("peek and receive and delete", Client::peek);
    for (var step : steps.entrySet()) {
      var line = new TreeMap<String, Object>(Map.of("step", step.getKey()));
      try {
        line.put("result", step.getValue().call());
      } catch (Throwable error) {
        line.put("error", error.toString());
      }
      System.out.println(BinaryData.fromObject(line));
    }
    System.exit(0);
  }
}
